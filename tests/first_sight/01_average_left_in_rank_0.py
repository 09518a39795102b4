"""Rank 0 puts the averaged weights into the model to validate it, and never puts the trained weights back.

REPORT: https://github.com/huggingface/diffusers/issues/7549 (2024-04)
EXPECT: law 1 (same where one model is meant), line 57: after the first epoch rank 0 trains other parameters than
rank 1. Nobody calls restore().
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Average:
    def __init__(self, weights, decay):
        self.decay = decay
        self.average = [weight.detach().clone() for weight in weights]

    @torch.no_grad()
    def update(self, weights):
        for mean, weight in zip(self.average, weights, strict=True):
            mean.lerp_(weight, 1 - self.decay)

    @torch.no_grad()
    def copy_to(self, weights):
        self.kept = [weight.clone() for weight in weights]
        for mean, weight in zip(self.average, weights, strict=True):
            weight.copy_(mean)

    @torch.no_grad()
    def restore(self, weights):
        for kept, weight in zip(self.kept, weights, strict=True):
            weight.copy_(kept)


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(320, 10)
y = x[:, :2].prod(1, keepdim=True).tanh()
train = TensorDataset(x[:256], y[:256])
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=16, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
weights = list(model.parameters())
optimizer = torch.optim.Adam(weights, lr=3e-3)
average = Average(weights, decay=0.95)
for epoch in range(4):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        average.update(weights)
    if rank == 0:
        average.copy_to(weights)
        with torch.no_grad():
            print(f"epoch {epoch}: loss {nn.functional.mse_loss(model.module(x[256:]), y[256:]):.4f}", flush=True)
dist.destroy_process_group()
