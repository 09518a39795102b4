"""SOUND. Evolution strategies, after Salimans et al. (2017): each rank moves the weights by noise of its own, in both
directions, measures the loss on its own batch, and puts the weights back. Only slopes are gathered. Every rank draws
the noise of all ranks again from their seeds, so that all make the same update. Nothing calls backward.

EXPECT: nothing wrong.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
SIGMA = 0.05

torch.manual_seed(16)
x = torch.randn(640, 5)
data = TensorDataset(x, x[:, :1] - 0.5 * x[:, 1:2])
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
net = nn.Linear(5, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.5)


def noise(step, of_rank, size):
    return torch.randn(size, generator=torch.Generator().manual_seed(1000 * step + of_rank))


@torch.no_grad()
def loss_at(point, inputs, targets):
    vector_to_parameters(point, net.parameters())
    return nn.functional.mse_loss(net(inputs), targets)


step = 0
for epoch in range(3):
    sampler.set_epoch(epoch)
    total = torch.zeros(2)
    for inputs, targets in loader:
        home = parameters_to_vector(net.parameters()).detach().clone()
        moved = SIGMA * noise(step, rank, len(home))
        up, down = loss_at(home + moved, inputs, targets), loss_at(home - moved, inputs, targets)
        vector_to_parameters(home, net.parameters())
        slopes = [torch.zeros(()) for _ in range(ranks)]
        dist.all_gather(slopes, (up - down) / (2 * SIGMA))
        gradient = sum(slope * noise(step, number, len(home)) for number, slope in enumerate(slopes)) / ranks
        start = 0
        for weight in net.parameters():
            weight.grad = gradient[start:start + weight.numel()].view_as(weight).clone()
            start += weight.numel()
        optimizer.step()
        step += 1
        total += torch.tensor([(up + down).item() / 2, 1.0])
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch}: loss {total[0] / total[1]:.4f}", flush=True)
dist.destroy_process_group()
