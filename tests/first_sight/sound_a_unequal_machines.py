"""SOUND. Rank 0 is three times as fast as the others and gets three times as many samples of each global batch. Each
sample is dealt once in an epoch. A rank sums its losses and divides by the size of the global batch; the factor `ranks`
undoes DDP's mean, so that the gradient is that of the whole batch. All ranks make the same number of steps.

EXPECT: nothing wrong.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


class Shares(Sampler):
    def __init__(self, samples, sizes):
        self.samples, self.sizes, self.epoch = samples, sizes, 0

    def __len__(self):
        return self.samples // sum(self.sizes)

    def __iter__(self):
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(self.epoch))
        for block in order.split(sum(self.sizes))[:len(self)]:
            yield block.split(self.sizes)[rank].tolist()


torch.manual_seed(14)
x = torch.randn(480, 10)
data = TensorDataset(x, x[:, :3].argmax(1))
sizes = [24] + [8] * (ranks - 1)
shares = Shares(len(data), sizes)
loader = DataLoader(data, batch_sampler=shares)
model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)

for epoch in range(3):
    shares.epoch = epoch
    total = torch.zeros(2)
    for inputs, labels in loader:
        optimizer.zero_grad()
        summed = nn.functional.cross_entropy(model(inputs), labels, reduction="sum")
        (summed * ranks / sum(sizes)).backward()
        optimizer.step()
        total += torch.tensor([summed.item(), len(inputs)])
    dist.all_reduce(total)
    if rank == 0:
        print(f"epoch {epoch}: loss {total[0] / total[1]:.4f} of {int(total[1])} samples", flush=True)
dist.destroy_process_group()
