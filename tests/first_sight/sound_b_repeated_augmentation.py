"""SOUND. Repeated augmentation, as in Hoffer et al. (2020) and DeiT: an image comes to every rank in the same step,
each time with another shift and other noise. An epoch therefore shows a part of the images, another part in each epoch.
Augmentations and dropout come from random numbers of the rank's own.

EXPECT: nothing wrong.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()


class Digits(Dataset):
    def __init__(self, number):
        shapes = torch.rand(10, 1, 12, 12, generator=torch.Generator().manual_seed(15)).round()
        self.labels = torch.arange(number) % 10
        self.images = shapes[self.labels]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        shift = torch.randint(-2, 3, (2,)).tolist()
        image = self.images[index].roll(shift, (1, 2))
        return image + 0.3 * torch.randn_like(image), self.labels[index]


class Repeated(Sampler):
    def __init__(self, samples):
        self.samples, self.epoch = samples, 0

    def __len__(self):
        return self.samples // ranks

    def __iter__(self):
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.repeat_interleave(ranks)[rank::ranks][:len(self)].tolist())


digits, sampler = Digits(480), Repeated(480)
loader = DataLoader(digits, batch_size=16, sampler=sampler)
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
torch.manual_seed(1 + rank)
for epoch in range(4):
    sampler.epoch = epoch
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
