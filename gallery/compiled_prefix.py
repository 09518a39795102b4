"""Weights saved by a run with torch.compile, and loaded for a run without."""

import io

import torch
from torch import nn

model = torch.compile(nn.Linear(4, 2), backend="eager")
file = io.BytesIO()
torch.save(model.state_dict(), file)

file.seek(0)
saved = torch.load(file, weights_only=True)
print("names in the file:", *saved, flush=True)
nn.Linear(4, 2).load_state_dict(saved)
print("loaded")
