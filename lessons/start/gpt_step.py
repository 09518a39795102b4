"""An update at a time of train_gpt.py's model: for programs that time its steps, not its learning."""

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from course.lesson import ROOT
from examples.minimal_gpt import GPT, loss_of


def use_strategies(names: list[str], parts: str) -> None:
    """Let `import NAME` find each of them: the learner's where they exist and parts is "mine", else ours. ValueError,
    one line, for a name without a file."""
    folders = [ROOT / "mine"] * (parts == "mine") + [ROOT / "lessons/start/ours"]
    for name in names:
        if not any(Path(folder, f"{name}.py").is_file() for folder in folders):
            raise ValueError(f"--strategies {name}: there is no {name}.py in {', '.join(map(str, folders))}")
    sys.path[:0] = map(str, folders)


class GPTStep:
    """A new GPT with a strategy, and this rank's share of `batch` crops of random bytes. parallelize: as in a
    strategy's file; without it the model trains alone, on as many crops."""

    def __init__(self, batch: int, context: int, width: int, layers: int, parallelize: Callable | None = None,
                 micro_batches: int = 1):
        torch.manual_seed(0)
        self.parallel, self.micro_batches = GPT(context, width, layers), micro_batches
        self.parameters = sum(each.numel() for each in self.parallel.parameters())
        make_optimizer = partial(torch.optim.AdamW, lr=1e-3)
        if parallelize:
            self.parallel, self.optimizer = parallelize(self.parallel, make_optimizer)
        else:
            self.optimizer = make_optimizer(self.parallel.parameters())
        which, shares = getattr(self.parallel, "share", (dist.get_rank(), dist.get_world_size()))
        self.windows = torch.randint(256, (batch, context + 1))[which::shares]

    def update(self) -> None:
        self.optimizer.zero_grad()
        getattr(self.parallel, "backward", self.backward)(self.windows, self.micro_batches)
        getattr(self.parallel, "finish", lambda: None)()
        self.optimizer.step()

    def backward(self, windows: torch.Tensor, micro_batches: int) -> None:
        for number, part in enumerate(windows.chunk(micro_batches), 1):
            quiet = number < micro_batches and hasattr(self.parallel, "no_sync")
            with self.parallel.no_sync() if quiet else contextlib.nullcontext():
                (loss_of(self.parallel, part) / micro_batches).backward()
