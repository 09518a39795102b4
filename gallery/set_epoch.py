"""Three epochs of SGD on rank 0's shard. (A sampler that is told rank and world size needs no process group.)"""

import torch
from torch.utils.data import DistributedSampler

torch.manual_seed(0)
inputs, labels, weights = torch.randn(24, 4), torch.randn(24), torch.zeros(4, requires_grad=True)
sampler, seen = DistributedSampler(inputs, num_replicas=2, rank=0, shuffle=True), []
for epoch in range(3):
    seen.append(list(sampler))
    losses = []
    for batch in torch.tensor(seen[-1]).split(2):
        loss = ((inputs[batch] @ weights - labels[batch]) ** 2).mean()
        (gradient,) = torch.autograd.grad(loss, weights)
        weights.data -= 0.01 * gradient
        losses.append(f"{loss:.2f}")
    print("losses of epoch", f"{epoch}:", *losses)
for epoch, order in enumerate(seen):
    print(f"epoch {epoch}, rank 0 sees:", *order)
