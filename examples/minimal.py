"""Train a small network on MNIST in one process. minimal_ddp.py is the same program for many.

    python minimal.py                # on a GPU if there is one; downloads MNIST to ./data, writes minimal.pt
    python minimal.py --data DIR     # takes MNIST from DIR/MNIST/raw, or downloads it there

Needs torchvision, and torch 2.6 or newer.
"""

import argparse
import socket

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import MNIST, FakeData
from torchvision.transforms import ToTensor

EPOCHS = 3
BATCH = 96  # images per update
SAVE = "minimal.pt"

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="./data", help="the folder that holds MNIST/raw (%(default)s)")
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)  # the same first weights and the same order of the images in each run

socket.setdefaulttimeout(10)  # seconds; torchvision sets none, so a download that stalls would never end
try:
    train_set, test_set = (MNIST(args.data, train, ToTensor(), download=True) for train in (True, False))
except (OSError, RuntimeError) as error:  # no network, or no permission to write
    cause = str(error).strip().split("\n")[-1]  # of several lines, the last says why
    print(f"MNIST is not in {args.data} and cannot be downloaded ({cause}): "
          "training on FakeData, random images", flush=True)
    train_set = FakeData(6000, (1, 28, 28), transform=ToTensor())
    test_set = FakeData(1000, (1, 28, 28), transform=ToTensor(), random_offset=6000)
train_loader = DataLoader(train_set, BATCH, shuffle=True)
test_loader = DataLoader(test_set, BATCH)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # [B, 1, 28, 28] to [B, 16, 14, 14]
    nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # to [B, 32, 7, 7]
    nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

for epoch in range(EPOCHS):
    sums = torch.zeros(3, device=device)  # training loss, training images, correct test images
    model.train()
    for images, labels in train_loader:
        images, labels = images.to(device), labels.to(device)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sums[0] += loss.detach() * len(labels)  # stays on the device: .item() would wait for the GPU in each step
        sums[1] += len(labels)
    model.eval()
    with torch.no_grad():
        for images, labels in test_loader:
            sums[2] += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
    print(f"Epoch: {epoch}, Loss: {sums[0] / sums[1]:.4f}, val acc: {sums[2] / len(test_set):.4f}", flush=True)
torch.save(model.state_dict(), SAVE)
