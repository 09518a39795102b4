"""The training loop that most first tutorials print, kept for comparison: images are fetched and normalised one by one.

    python scripts/measure/textbook.py --epochs 1
    torchrun --nproc_per_node=8 scripts/measure/textbook.py --steps 1

Each rank imports torchvision, and a DataLoader calls ToTensor and Normalize for each image. Weights, learning rate and
batch size are main.py's.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
import torchvision
from PIL import Image
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import utils
from course import rank_program
from trainer import data, launch, models
from trainer.options import positive


class TextbookNet(models.ConvNet):
    """The same function with the same weights, in the usual order: ReLU, then pool."""

    def forward(self, images):
        x = functional.max_pool2d(torch.relu(self.conv1(images)), 2)
        x = functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


class OneByOne(Dataset):
    """A data set as torchvision.datasets.CIFAR10: arrays in memory, a PIL image and a transform for each item."""

    def __init__(self, images, labels, transform):
        self.data = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.targets = labels.tolist()
        self.transform = transform

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]


def main():
    parser = rank_program.parser(__doc__)
    parser.add_argument("--epochs", type=positive(int), default=1)
    parser.add_argument("--samples", type=positive(int), default=50_000, help="train on the first so many images")
    parser.add_argument("--steps", type=positive(int), default=sys.maxsize, help="end each epoch after so many steps")
    args = parser.parse_args()

    placement = launch.find_placement(device="cpu")
    launch.init_distributed_mode(placement)
    torch.manual_seed(0)
    info = data.DATASETS["cifar10"]
    to_tensor = torchvision.transforms.ToTensor()
    transform = torchvision.transforms.Compose([to_tensor, torchvision.transforms.Normalize(info.mean, info.std)])
    train_set = data.get_dataset("cifar10", verify=placement.local_rank == 0)[0].first(args.samples)
    train_set = OneByOne(train_set.images, train_set.labels, transform)
    sampler = DistributedSampler(train_set, placement.world_size, placement.rank)
    loader = DataLoader(train_set, batch_size=64, sampler=sampler)
    model = TextbookNet()
    if placement.world_size > 1:
        model = DistributedDataParallel(model)
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        timer = utils.PhaseTimer(placement.device)
        for step, (images, labels) in enumerate(loader):
            timer.mark("data")
            loss = criterion(model(images), labels)
            timer.mark("forward")
            optimizer.zero_grad()
            loss.backward()
            timer.mark("backward")
            optimizer.step()
            timer.mark("update")
            if step + 1 == args.steps:
                break
        if placement.rank == 0:
            seconds = timer.totals()
            phases = {f"{phase}_seconds": value for phase, value in seconds.items()}
            print(json.dumps({"kind": "epoch", "time": time.time(), "epoch": epoch, "loss": loss.item(),
                              "seconds": sum(seconds.values()), **phases}), flush=True)
    dist.barrier()
    launch.end_distributed_mode()


if __name__ == "__main__":
    rank_program.start(main)
