"""Run a program as python would, and note what no comparison of weights can see, in facts-RANK.json in its folder.

    torchrun --nproc_per_node=2 lessons/l07_traps/watched.py PROGRAM ARGS…

Which training images each update took, how many images were tested, whether the ranks had met, whether the model that
was called is DDP's, and how often the program called torch.save. A wait for another rank ends after WAIT, whatever the
program asks for.
"""

import json
import os
import runpy
import sys
import zlib
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

WAIT = timedelta(seconds=20)


def key_of(image: torch.Tensor) -> int:
    """A number for an image of values between 0 and 1, the same on each rank."""
    return zlib.crc32((255 * image).round().byte().cpu().contiguous().numpy().tobytes())


class Facts:
    def __init__(self, program: str):
        self.program, self.depth, self.images = program, 0, []
        self.noted = {"met": False, "wrapped": False, "updates": [], "tested": 0, "saves": 0}

    def forward_begins(self, module, inputs) -> None:
        self.depth += 1  # modules within modules: only the outermost counts
        if self.depth == 1 and module.training and torch.is_grad_enabled():
            self.images += map(key_of, inputs[0])
            self.noted["wrapped"] = isinstance(module, DistributedDataParallel)
        elif self.depth == 1:
            self.noted["tested"] += len(inputs[0])

    def forward_ends(self, *_) -> None:
        self.depth -= 1

    def updated(self, *_) -> None:
        self.noted["met"] = dist.is_initialized()
        self.noted["updates"].append(self.images)
        self.images = []

    def watch(self) -> None:
        register_module_forward_pre_hook(self.forward_begins)
        register_module_forward_hook(self.forward_ends, always_call=True)
        register_optimizer_step_post_hook(self.updated)
        join, save = dist.init_process_group, torch.save

        def counted(*args, **options):
            self.noted["saves"] += sys._getframe(1).f_code.co_filename == self.program  # else it is the recorder's
            save(*args, **options)

        dist.init_process_group = lambda *args, **options: join(*args, **{**options, "timeout": WAIT})
        torch.save = counted


def main() -> None:
    facts, out = Facts(sys.argv[1]), Path.cwd() / f"facts-{os.environ['RANK']}.json"
    del sys.argv[0]
    sys.path[0] = str(Path(facts.program).parent)
    facts.watch()
    try:
        runpy.run_path(facts.program, run_name="__main__")
    finally:
        out.write_text(json.dumps(facts.noted))


if __name__ == "__main__":
    main()
