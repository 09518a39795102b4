"""The discriminator is trained in two of three steps, as a random number says, and each rank draws its own number: one
rank averages the discriminator's gradients while the other is already at the generator's.

REPORT: https://github.com/ZhikangNiu/encodec-pytorch/issues/30 (2024-08)
EXPECT: law 6 (decided together), line 37: the ranks go different ways at this `if`. What comes after it (an abort, or
a wait in backward) is the consequence.
"""
import random
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds=10))
rank = dist.get_rank()
WARMUP, SHARE = 1, 0.67

torch.manual_seed(10)
random.seed(10 + rank)
waves = torch.randn(256, 1, 32).cumsum(2)
sampler = DistributedSampler(waves)
loader = DataLoader(TensorDataset(waves), batch_size=16, sampler=sampler)
codec = DDP(nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.ELU(), nn.Conv1d(8, 1, 5, padding=2)))
critic = DDP(nn.Sequential(nn.Conv1d(1, 16, 5, 2), nn.LeakyReLU(0.2), nn.Conv1d(16, 1, 5, 2)))
codec_optimizer = torch.optim.Adam(codec.parameters(), lr=1e-3)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)

for epoch in range(4):
    sampler.set_epoch(epoch)
    for (wave,) in loader:
        coded = codec(wave)
        if epoch >= WARMUP and random.random() < SHARE:
            critic_optimizer.zero_grad()
            real, made = critic(torch.cat([wave, coded.detach()])).chunk(2)
            ((1 - real).relu().mean() + (1 + made).relu().mean()).backward()
            critic_optimizer.step()
        codec_optimizer.zero_grad()
        fixed = {name: weight.detach() for name, weight in critic.module.named_parameters()}
        loss = nn.functional.l1_loss(coded, wave) - 0.1 * functional_call(critic.module, fixed, (coded,)).mean()
        loss.backward()
        codec_optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
