"""Summed losses are divided by the tokens of all ranks, and DDP divides the gradients by the ranks besides: each update
is as small as if the rate were lr / ranks.

REPORT: https://github.com/meta-pytorch/torchtune/pull/2172 (2024-12)
EXPECT: law 5 (the scale of one process), line 43: the gradient is 1/ranks of that of the whole batch, 1/2 on two
ranks and 1/3 on three. The factor `ranks` is missing.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
WINDOW, WORDS, PADDING = 2, 20, -100

torch.manual_seed(9)
text = torch.randint(WORDS, (192, 13))
text[:, 1::2] = (text[:, ::2][:, :6] * 3 + 1) % WORDS
labels = text[:, 1:].clone()
labels[torch.arange(12) >= torch.randint(3, 13, (192, 1))] = PADDING
data = TensorDataset(text[:, :-1], labels)
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model = DDP(nn.Sequential(nn.Embedding(WORDS, 24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, WORDS)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

for epoch in range(3):
    sampler.set_epoch(epoch)
    loss, tokens = torch.zeros(()), torch.zeros(())
    for number, (words, following) in enumerate(loader, 1):
        summed = nn.functional.cross_entropy(model(words).flatten(0, 1), following.flatten(), ignore_index=PADDING,
                                             reduction="sum")
        summed.backward()
        loss += summed.detach()
        tokens += (following != PADDING).sum()
        if number % WINDOW == 0:
            dist.all_reduce(loss)
            dist.all_reduce(tokens)
            for weight in model.parameters():
                weight.grad.mul_(1 / tokens)
            optimizer.step()
            optimizer.zero_grad()
            last = loss / tokens
            loss, tokens = torch.zeros(()), torch.zeros(())
    if rank == 0:
        print(f"epoch {epoch}: loss {last:.4f}", flush=True)
dist.destroy_process_group()
