"""Two figures of an evaluation share one tensor, and each figure is summed over the ranks in place: the hits are summed
twice, and accuracies come out above 1.

REPORT: https://github.com/vllm-project/speculators/pull/759 (2026-07)
EXPECT: law 4 (each sample once: evaluation counts each sample once), line 39: the tensor that line 37 stores
under two names is all-reduced twice, so that each hit counts twice. Law 3 (distinct tensors) is as right.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(7)
x = torch.randn(480, 10)
data = TensorDataset(x, (x[:, :2] > 0).float())
train, test = Subset(data, range(320)), Subset(data, range(320 + rank, 480, ranks))
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=16, sampler=sampler)
tests = DataLoader(test, batch_size=20)
model = DDP(nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 2)))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)


@torch.no_grad()
def evaluate():
    samples, first, both = torch.zeros(()), torch.zeros(()), torch.zeros(())
    for inputs, tokens in tests:
        right = (model.module(inputs) > 0) == tokens.bool()
        samples += len(inputs)
        first += right[:, 0].sum()
        both += right.all(1).sum()
    sums = {"both": both, "both_of": samples, "second": both, "second_of": first}
    for value in sums.values():
        dist.all_reduce(value)
    return {name: (sums[name] / sums[f"{name}_of"]).item() for name in ("both", "second")}


for epoch in range(3):
    model.train()
    sampler.set_epoch(epoch)
    for inputs, tokens in loader:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(inputs), tokens).backward()
        optimizer.step()
    model.eval()
    accuracy = evaluate()
    if rank == 0:
        print(f"epoch {epoch}: both {accuracy['both']:.3f}, second after first {accuracy['second']:.3f}", flush=True)
dist.destroy_process_group()
