"""An update at a time of lessons/start/train.py's model: for programs that time its steps, not its learning."""

import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy


class TrainStep:
    """The model of train.py and its optimizer, with one random batch of `batch` images. wrap: model -> the wrapped one;
    without it the model trains alone."""

    def __init__(self, batch, wrap=None):
        torch.manual_seed(0)
        self.model = nn.Sequential(  # 156,074 parameters
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))
        self.parallel = wrap(self.model) if wrap else self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.images, self.labels = torch.rand(batch, 3, 32, 32), torch.randint(10, (batch,))

    def update(self) -> float:
        """Returns the moment, of time.perf_counter, at which backward had ended."""
        self.optimizer.zero_grad()
        cross_entropy(self.parallel(self.images), self.labels).backward()
        ended = time.perf_counter()
        if hasattr(self.parallel, "finish"):
            self.parallel.finish()
        self.optimizer.step()
        return ended
