"""A checkpoint that was saved on GPU 0, loaded where that is not the right place."""

import io

import torch
from torch import serialization

if not torch.cuda.is_available():  # write the file that a GPU machine would: its tensors carry the tag of GPU 0
    serialization.register_package(1, lambda storage: "cuda:0", lambda storage, location: None)
file = io.BytesIO()
torch.save({"weights": torch.ones(4, device="cuda" if torch.cuda.is_available() else "cpu")}, file)
print("the file says that its tensors were on cuda:0:", b"cuda:0" in file.getvalue(), flush=True)
file.seek(0)
weights = torch.load(file)["weights"]
print("loaded to", weights.device)
