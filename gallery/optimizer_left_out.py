"""Four updates in one go, and the same four with a checkpoint after the second."""

import io

import torch
from torch import nn


def begin():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.ones(8, 4)) - 1).square().mean().backward()
        optimizer.step()


whole, optimizer = begin()
train(whole, optimizer, 4)

model, optimizer = begin()
train(model, optimizer, 2)
file = io.BytesIO()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
file.seek(0)
saved = torch.load(file, weights_only=True)
model, optimizer = begin()
model.load_state_dict(saved["model"])
train(model, optimizer, 2)
print(f"weights differ by {(whole.weight - model.weight).abs().max():.4f} from the run in one go")
