"""Bytes that four GPUs hold of DataParallel's outputs, by its rules: chunks to each, all outputs to GPU 0.

The tensors are real and lie in the CPU's memory; which GPU would hold them is computed.
"""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10_000)  # scores for 10,000 words

    def forward(self, inputs, labels):
        scores = self.layer(inputs)
        return scores


model, inputs, labels = Model(), torch.randn(512, 64), torch.randint(10_000, (512,))
outputs = [model(*parts) for parts in zip(inputs.chunk(4), labels.chunk(4), strict=True)]  # one GPU each
gathered = torch.cat(outputs)  # on GPU 0
bytes_of = [output.nbytes for output in outputs]
bytes_of[0] += gathered.nbytes
for gpu, held in enumerate(bytes_of):
    print(f"GPU {gpu}: {held:>10,} bytes of outputs")
print(f"GPU 0 gathers {gathered.nbytes:,} bytes")
