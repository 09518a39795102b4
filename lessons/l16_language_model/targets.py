"""Which bytes of a crop the exam's programs learn to predict: not all, and not equally many in each crop."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

NO_TARGET = -100  # which cross_entropy leaves out
BREAK = 10  # the byte that ends a line


def paragraph(windows: torch.Tensor) -> torch.Tensor:
    """Text A. A crop ends with its paragraph: what stands behind a blank line is padding. windows: bytes, [crops,
    context + 1]. Returns [crops, context]: the next byte, or -100 for no target."""
    windows = windows.long()
    blank = (windows[:, :-1] == BREAK) & (windows[:, 1:] == BREAK)
    return windows[:, 1:].masked_fill(blank.cumsum(1) > 0, NO_TARGET)


def answer(windows: torch.Tensor) -> torch.Tensor:
    """Text B. A crop begins with a prompt, up to its first line break: only what follows is to be predicted. Shapes as
    above; a crop without a line break has no target."""
    windows = windows.long()
    return windows[:, 1:].masked_fill((windows[:, :-1] == BREAK).cumsum(1) == 0, NO_TARGET)


def loss_of(model: nn.Module, windows: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Cross entropy over the targets that there are: their "mean" or their "sum"."""
    return cross_entropy(model(windows[:, :-1].long()).flatten(0, 1), targets.flatten(), reduction=reduction)
