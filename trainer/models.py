"""The models: images [N, C, S, S] to logits [N, classes]. Another model is a class here and a line in MODELS."""

import torch
from torch import nn

from trainer.data import AnySet
from trainer.options import Options


class ConvNet(nn.Module):
    """LeNet as most first tutorials write it: images [N, C, S, S] to logits [N, classes].

    Logits, not probabilities: CrossEntropyLoss applies log-softmax itself.
    """

    def __init__(self, channels: int = 3, classes: int = 10, image_size: int = 32):
        super().__init__()
        side = ((image_size - 4) // 2 - 4) // 2  # a 5x5 convolution without padding takes 4, a pool halves
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * side * side, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(nn.functional.max_pool2d(self.conv1(images), 2))  # pool, then ReLU: the same values as
        x = torch.relu(nn.functional.max_pool2d(self.conv2(x), 2))  # ReLU, then pool, for a quarter of the ReLUs
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm that halve the side, and a 1x1 shortcut (He et al. 2015, 1512.03385)."""

    def __init__(self, channels_in: int, channels_out: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(channels_out),
            nn.ReLU(), nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False), nn.BatchNorm2d(channels_out))
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class SmallResNet(nn.Module):
    """A residual network small enough for a CPU: images [N, C, S, S], any S, to logits [N, classes]."""

    def __init__(self, channels: int = 3, classes: int = 10, image_size: int | None = None):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(ResidualBlock(16, 16), ResidualBlock(16, 32), ResidualBlock(32, 64))
        self.fc = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.blocks(self.stem(images)).mean(dim=(2, 3)))


MODELS = {"lenet": ConvNet, "resnet": SmallResNet}


def make_model(args: Options, train_set: AnySet, device: torch.device) -> nn.Module:
    """The raw model on `device`, with the weights that torch's seed gives: the same on every rank."""
    layout = torch.channels_last if args.channels_last else torch.preserve_format
    channels, side, _ = train_set.shape
    return MODELS[args.model](channels, len(train_set.classes), side).to(device).to(memory_format=layout)
