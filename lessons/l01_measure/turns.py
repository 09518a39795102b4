"""Whole programs that train in turns, so that their times are pairs.

    with taking_turns({"before": "python mine/train.py", "after": "python mine/changed.py"}, images=960) as programs:
        programs["before"]()  # it trains on 960 images, then it stands still
        programs["after"]()

Each program starts once. It stops before its first forward pass, and then after the update that completes its images:
on several ranks, those of all. It must state epochs and images enough for all turns. This file is also what every
process of a program runs first: it waits at these places until the notebook writes into a store whose turn it is, and
reports through a named pipe, so that nobody asks again and again and takes time from a core.
"""

import os
import runpy
import select
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from trainer import launch

START = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}
LIMIT = 120  # seconds for a turn, about


@contextmanager
def taking_turns(commands: Mapping[str, str], images: int) -> Iterator[dict[str, Callable[[], None]]]:
    """Within `with`: {name: a function that lets this program train on so many images, and returns when it has}.

    `commands`: {name: "python PROGRAM.py …" or "torchrun … PROGRAM.py …"}. The function raises RuntimeError, with what
    the program has printed last, if it ends before that, or takes longer than 120 s.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        running = []
        try:
            for name, command in commands.items():
                program = Program(store, command, Path(folder, str(len(running))), images)
                running.append((name, program))
            yield {name: program.turn for name, program in running}
        finally:
            for _, program in running:
                program.process.terminate()  # torchrun ends its ranks
            for _, program in running:
                program.process.wait()
                os.close(program.reports)


class Program:
    """A command that runs, and its turns."""

    def __init__(self, store: dist.Store, command: str, place: Path, images: int):
        first, *words = shlex.split(command)
        at = next(number for number, word in enumerate(words) if word.endswith(".py"))
        self.store, self.command, self.place, self.turns = store, command, place, 0
        os.mkfifo(place)
        self.reports = os.open(place, os.O_RDWR)  # for writing, too: so it has no end while nobody else writes
        self.out = place.with_suffix(".txt")
        self.process = subprocess.Popen([*START[first], *words[:at], __file__, *words[at:]], stderr=subprocess.STDOUT,
                                        stdout=self.out.open("w"),
                                        env=os.environ | {"TURNS": f"{store.port} {place} {images}"})

    def turn(self):
        self.turns += 1
        self.store.set(f"{self.place} {self.turns}", "go")
        for _ in range(LIMIT):
            if select.select([self.reports], [], [], 1)[0]:
                os.read(self.reports, 1)
                return
            if self.process.poll() is not None:
                break
        last = "\n".join(self.out.read_text(errors="replace").splitlines()[-8:])
        raise RuntimeError(f"{self.command} did not finish turn {self.turns}. It printed last:\n{last}")


class Turns:
    """In a process of a program: counts the images that its outermost module has got, and waits after so many."""

    def __init__(self, port: str, place: str, images: str):
        self.store = dist.TCPStore("127.0.0.1", int(port), is_master=False)
        self.place, self.images, self.seen, self.turn = place, int(images), 0, 0
        self.ranks, self.model = int(os.environ.get("WORLD_SIZE", 1)), None

    def wait(self):
        self.seen, self.turn = 0, self.turn + 1
        self.store.wait([f"{self.place} {self.turn}"], timedelta(hours=1))

    def forward(self, module, inputs):
        if self.model is None:
            self.model = module
            self.wait()
        if module is self.model:
            self.seen += len(inputs[0])

    def updated(self, *_):
        if self.seen * self.ranks < self.images:
            return
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if self.store.add(f"{self.place} {self.turn} ended", 1) == self.ranks:  # the last one
            Path(self.place).write_text(".")
        self.wait()


@contextmanager
def one_core() -> Iterator[None]:
    """Within `with`, where the system can: this process, and what it starts, compute on one core."""
    if not hasattr(os, "sched_setaffinity"):  # macOS
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def neighbours(seconds: float) -> None:
    """Start programs that compute for so many seconds, two for each core that this process may use."""
    code = f"import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"
    for _ in range(2 * launch.cores()):
        subprocess.Popen([sys.executable, "-S", "-c", code])


if __name__ == "__main__":
    turns = Turns(*os.environ["TURNS"].split())
    register_module_forward_pre_hook(turns.forward)
    register_optimizer_step_post_hook(turns.updated)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)  # as Python does for a program
    runpy.run_path(sys.argv[0], run_name="__main__")
