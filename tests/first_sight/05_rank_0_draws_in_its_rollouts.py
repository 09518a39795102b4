"""A sampler shuffles by the global random numbers, which are alike on all ranks until rank 0 alone runs noisy rollouts:
from then on the ranks cut their parts out of different orders.

REPORT: https://github.com/huggingface/lerobot/pull/3768 (2026-06)
EXPECT: law 4 (each sample once), line 24: from epoch 1 on both ranks train on some samples, and no rank on some
others. The orders part by the draw in line 44.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


class FrameSampler(Sampler):
    def __init__(self, frames):
        self.frames = frames

    def __iter__(self):
        order = torch.randperm(self.frames)
        return iter(order[rank::ranks].tolist())

    def __len__(self):
        return self.frames // ranks


torch.manual_seed(1000)
states = torch.randn(320, 6)
frames = TensorDataset(states, states[:, :2] * states[:, 2:4])
loader = DataLoader(frames, batch_size=16, sampler=FrameSampler(len(frames)))
policy = DDP(nn.Sequential(nn.Linear(6, 48), nn.Tanh(), nn.Linear(48, 2)))
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3)


@torch.no_grad()
def rollouts(number=8, steps=10):
    state, reward = torch.zeros(number, 6), torch.zeros(number)
    for _ in range(steps):
        action = policy.module(state)
        state = 0.9 * state + 0.1 * torch.randn(number, 6)
        reward -= (action - state[:, :2] * state[:, 2:4]).square().sum(1)
    return reward.mean().item()


for epoch in range(4):
    for state, action in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(policy(state), action).backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}: reward {rollouts():.3f}", flush=True)
    dist.barrier()
dist.destroy_process_group()
