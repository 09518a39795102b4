"""How many tokens a second do ways of training the language model reach, in turns, and what do they send?

    torchrun --nproc_per_node=2 lessons/l16_language_model/token_speed.py \\
        --wrapper lessons/start/ours/my_ddp.py:MyDDP --out results/live/16_speed.json

A round has --steps updates of each way. `alone`: rank 0 takes the whole batch, and the others wait. In all other ways
each rank takes its share. `never`: nobody talks, and each rank trains a model of its own; this is the ceiling. `each`:
DDP without no_sync(). `wrapper`: a class of one's own in DDP's place, as with main.py --wrapper; where it has a
finish(), that is called after the last backward.

The file is one JSON object: the machine; `parameters`; `tokens` of an update; `rounds`, {way: [tokens a second of all
ranks]}; `peak`, {"alone" or "all": [FLOP/s in a product of matrices, of rank 0 alone, or of all ranks at one time]};
`sent`, {way: [bytes, messages] of an update of rank 0}; and `off`, {way: how far, after three updates, its weights are
from those of one process with the whole batch, relative to how far these moved}.
"""

import time
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from course import rank_program, shortcuts
from course.rank_program import meet
from course.sent import Sent
from course.timing import interleave
from examples import minimal_gpt
from trainer import files, launch
from trainer.options import positive

WAYS = ("alone", "never", "ddp", "each", "fsdp", "wrapper")
LARGE, PRODUCTS = 1024, 4  # rows and columns of the matrices that show the peak, and how many products


class Training:
    """An update at a time, as minimal_gpt_ddp.py makes it."""

    def __init__(self, way, args, learnt):
        torch.manual_seed(0)
        self.way, self.args, self.learnt = way, args, learnt
        self.model = minimal_gpt.GPT(args.context, args.width)
        self.first = self.weights()
        if way == "fsdp":
            for part in (*self.model.blocks, self.model):
                fully_shard(part)
        wrap = {"ddp": DistributedDataParallel, "each": DistributedDataParallel, "wrapper": args.wrapped}
        self.wrapped = wrap.get(way, lambda model: model)(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.crops = torch.Generator().manual_seed(0)

    def weights(self):
        whole = (getattr(each, "full_tensor", lambda each=each: each)() for each in self.model.parameters())
        return torch.cat([each.detach().flatten() for each in whole])

    def update(self):
        begins = torch.randint(len(self.learnt) - self.args.context, (self.args.batch,), generator=self.crops)
        begins = begins if self.way == "alone" else begins[dist.get_rank()::dist.get_world_size()]
        for number, part in enumerate(begins.chunk(self.args.accumulate), 1):
            windows = self.learnt[part[:, None] + torch.arange(self.args.context + 1)]
            if self.way == "fsdp":
                self.model.set_requires_gradient_sync(number == self.args.accumulate)
            if self.way == "ddp":
                self.wrapped.require_backward_grad_sync = number == self.args.accumulate  # what no_sync() sets
            (minimal_gpt.loss_of(self.wrapped, windows) / self.args.accumulate).backward()
        if hasattr(self.wrapped, "finish"):
            self.wrapped.finish()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def works(self):
        return self.way != "alone" or dist.get_rank() == 0

    def speed(self, steps):
        """Tokens a second of all ranks."""
        meet(torch.device("cpu"))
        start = time.perf_counter()
        for _ in range(steps if self.works() else 0):
            self.update()
        meet(torch.device("cpu"))
        tokens = steps * self.args.batch * self.args.context
        return tokens / (time.perf_counter() - start)


def product(alone):
    """FLOP/s in products of two matrices, of rank 0 alone or of all ranks together."""
    left, right = torch.rand(2, LARGE, LARGE)
    meet(torch.device("cpu"))
    start, working = time.perf_counter(), 1 if alone else dist.get_world_size()
    for _ in range(PRODUCTS if dist.get_rank() < working else 0):
        left @ right
    meet(torch.device("cpu"))
    return working * PRODUCTS * 2 * LARGE**3 / (time.perf_counter() - start)


def measure(args):
    learnt, _ = minimal_gpt.read_text(args)
    trainings = {way: Training(way, args, learnt) for way in WAYS if way != "wrapper" or args.wrapper}
    sent, weights = {}, {}
    for way, training in trainings.items():
        with Sent() as messages:
            for _ in range(3 if training.works() else 0):
                messages.bytes.clear(), messages.calls.clear()
                training.update()
        sent[way] = [messages.bytes.total(), messages.calls.total()]
        weights[way] = training.weights()
    dist.broadcast(weights["alone"], src=0)
    moved = (weights["alone"] - trainings["alone"].first).norm()
    programs = {way: partial(training.speed, args.steps) for way, training in trainings.items()}
    programs |= {"peak": partial(product, True), "peak of all": partial(product, False)}
    rounds = interleave(programs, args.rounds)
    return {"parameters": len(weights["alone"]), "tokens": args.batch * args.context, "width": args.width,
            "context": args.context, "peak": {"alone": rounds.pop("peak"), "all": rounds.pop("peak of all")},
            "rounds": rounds, "sent": sent,
            "off": {way: ((each - weights["alone"]).norm() / moved).item() for way, each in weights.items()}}


def main():
    parser = rank_program.parser(__doc__, out="write what was measured to this file, as JSON", timeout=60)
    parser.add_argument("--wrapper", metavar="FILE.py:CLASS", help="a class in place of DDP, such as lesson 06's")
    parser.add_argument("--rounds", type=positive(int), default=7, help="of each way (%(default)s)")
    parser.add_argument("--steps", type=positive(int), default=5, help="updates of a round (%(default)s)")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2:
            raise ValueError("one process has nobody to talk to: start this with torchrun --nproc_per_node=2")
        files.check_output("--out", args.out)
        args.wrapped = files.from_file(args.wrapper) if args.wrapper else None
    vars(args).update(vars(minimal_gpt.options().parse_args(["--batch=32"])))
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        shortcuts.defer_compiler()
        results = measure(args)
    if placement.rank == 0:
        rank_program.write_json(args.out, rank_program.measured_on(placement) | results)


if __name__ == "__main__":
    rank_program.start(main)
