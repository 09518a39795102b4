"""Gradients are averaged by hand, but only those that a rank has, and the ranks hold batches of different tasks: the
gradient of one head is added to that of the other.

REPORT: https://github.com/OpenTSLM/OpenTSLM/pull/49 (2026-06, review of the gradient loop)
EXPECT: law 1 (same where one model is meant: what each collective carries), line 32 under the condition of line
31: heads.price of rank 0 meets heads.demand of rank 1. The heads differ afterwards.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
TASKS = ["price", "demand"]


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(32, 1) for task in TASKS})

    def forward(self, series, task):
        return self.heads[task](self.trunk(series))


def average_gradients(net):
    for weight in net.parameters():
        if weight.grad is not None:
            dist.all_reduce(weight.grad)
            weight.grad /= ranks


torch.manual_seed(1)
samplers, loaders = {}, {}
for number, task in enumerate(TASKS):
    series = torch.randn(192, 8)
    data = TensorDataset(series, series[:, number:number + 1] - series[:, 4:5])
    samplers[task] = DistributedSampler(data, seed=number)
    loaders[task] = DataLoader(data, batch_size=16, sampler=samplers[task])
net = Forecaster()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for epoch in range(3):
    for sampler in samplers.values():
        sampler.set_epoch(epoch)
    batches = {task: iter(loader) for task, loader in loaders.items()}
    for step in range(sum(len(loader) for loader in loaders.values())):
        task = TASKS[(step + rank) % len(TASKS)]  # both tasks in each step
        series, target = next(batches[task])
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(series, task), target)
        loss.backward()
        average_gradients(net)
        optimizer.step()
    dist.all_reduce(loss := loss.detach())
    if rank == 0:
        print(f"epoch {epoch}: loss {loss / ranks:.4f}", flush=True)
dist.destroy_process_group()
