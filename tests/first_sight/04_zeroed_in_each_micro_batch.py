"""Four micro-batches make one update, but each call of forward_backward() first clears the gradients: only the last
micro-batch reaches the optimizer.

REPORT: https://github.com/pytorch/torchtitan/pull/3575 (2026-06)
EXPECT: law 3 (nothing for nothing: a backward reaches a step), line 28: three of four backward passes are cleared
before the step.
"""
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
MICRO_BATCHES = 4


class Trainer:
    def __init__(self, net):
        self.model = DDP(net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3)

    def forward_backward(self, inputs, labels, last):
        self.optimizer.zero_grad()
        with nullcontext() if last else self.model.no_sync():
            loss = nn.functional.cross_entropy(self.model(inputs), labels) / MICRO_BATCHES
            loss.backward()
        return loss.detach() * MICRO_BATCHES

    def update(self):
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return norm


torch.manual_seed(2)
x = torch.randn(512, 16)
data = TensorDataset(x, x[:, :4].argmax(1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
trainer = Trainer(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))

for epoch in range(3):
    sampler.set_epoch(epoch)
    losses = torch.zeros(2)
    for number, (inputs, labels) in enumerate(loader, 1):
        last = number % MICRO_BATCHES == 0
        losses += torch.stack([trainer.forward_backward(inputs, labels, last), torch.tensor(1.0)])
        if last:
            norm = trainer.update()
    dist.all_reduce(losses)
    if rank == 0:
        print(f"epoch {epoch}: loss {losses[0] / losses[1]:.4f}, gradient norm {norm:.3f}", flush=True)
dist.destroy_process_group()
