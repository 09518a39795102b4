"""A checkpoint with the weights and the options of the run, written and read again."""

import argparse
import io

import torch
from torch import nn

model, options, file = nn.Linear(4, 1), argparse.Namespace(lr=0.1), io.BytesIO()
torch.save({"model": model.state_dict(), "options": options}, file)
file.seek(0)
checkpoint = torch.load(file)
model.load_state_dict(checkpoint["model"])
print("loaded, with the options", checkpoint["options"])
