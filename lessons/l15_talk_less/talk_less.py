"""Must ranks talk at each step? Ways to train in turns, how fast they are, what they send, and what they learn.

    torchrun --nproc_per_node=2 lessons/l15_talk_less/talk_less.py --out results/live/15.json
    torchrun --nproc_per_node=2 lessons/l15_talk_less/talk_less.py --ways never ddp diloco:32 \\
        --outer results/live/15_outer.py --out results/live/15.json

A way is a name of lessons/l15_talk_less/talk_ways.py, with `:N` where its ranks talk after each N batches. `never` is
the ceiling: nobody talks. With each seed all ways start from the same weights. They take turns: in a round each learns
from --steps batches, and is then judged on the test set, which does not count as time. `--outer FILE` trains diloco
with the outer step of that file, a learner's; ours takes its place where there is no such file, or only a stub in it.

The file is one JSON object: the machine, `shapes` of the tensors of LeNet, `samples` (training images), `steps`
(batches of a round), and `rounds`, one object for each way, seed and round: `images` seen so far by all ranks,
`seconds` of this round, `accuracy` (of `never` the mean over the ranks' models), and `sent`, bytes a batch that each
rank sent, as the network interfaces of rank 0's machine counted them, with other programs' bytes; None for GPUs, which
may use no network. `outer` says whose outer step diloco took: "yours" or "ours" with --outer, else None.
"""

import itertools
import time
from functools import partial

import psutil
import torch
from torch.utils.data import DataLoader, DistributedSampler

import utils
from course import rank_program, shortcuts
from course.on_ranks import theirs_or_ours
from course.rank_program import meet
from lessons.l15_talk_less.talk_ways import WAYS, diloco, my_outer_step
from trainer import launch, models
from trainer.files import check_output
from trainer.options import from_zero, nonempty_path, positive

BATCH_SIZE = 64  # images a batch of each rank
DEFAULT = ["never", "ddp", "accumulate:8", "local:8", "local:32", "diloco:32", "bf16", "powersgd"]


def way(text):
    """(name, every) of NAME or NAME:N; ValueError for another text, of which argparse makes a message."""
    name, _, every = text.partition(":")
    if name not in WAYS or (every and not (every.isdecimal() and int(every) > 0)):
        raise ValueError(text)
    return name, int(every or 1)


class Training:
    """A model that learns in one way, from this rank's share of the images."""

    def __init__(self, name, every, seed, args, train_set, placement):
        torch.manual_seed(seed)
        self.device = placement.device
        self.model = models.make_model(args, train_set, placement.device)
        self.update = args.makers[name](self.model, every)
        self.sampler = DistributedSampler(train_set, placement.world_size, placement.rank, seed=seed)
        self.batches = self.endless(DataLoader(train_set, BATCH_SIZE, sampler=self.sampler, drop_last=True,
                                               collate_fn=train_set.collate))

    def endless(self, loader):
        for epoch in itertools.count():
            self.sampler.set_epoch(epoch)
            yield from loader

    def round(self, steps):
        """(seconds from one meeting of all ranks to the next, bytes that this machine sent meanwhile)."""
        meet(self.device)
        before, start = psutil.net_io_counters().bytes_sent, time.perf_counter()
        for _ in range(steps):
            self.update(*next(self.batches))
        meet(self.device)
        return time.perf_counter() - start, psutil.net_io_counters().bytes_sent - before


def measure(args, train_set, test_set, placement):
    """Yields a dict for each seed, round and way."""
    for seed in args.seeds:
        trainings = [Training(*name_every, seed, args, train_set, placement) for name_every in args.ways]
        for number in range(1, args.rounds + 1):
            for (name, every), training in zip(args.ways, trainings, strict=True):
                seconds, sent = training.round(args.steps)
                _, accuracy = utils.evaluate(training.model, utils.shard_loader(test_set, placement),
                                                placement.device)
                training.model.train()
                yield {"way": name, "every": every, "seed": seed, "round": number, "seconds": seconds,
                       "images": number * args.steps * BATCH_SIZE * placement.world_size,
                       "accuracy": float(accuracy),
                       "sent": sent / args.steps / placement.local_world_size if placement.backend == "gloo" else None}


def check(args, placement):
    """(training set, test set); ValueError, one line, for options that cannot work. No rank waits before it.

    Sets `args.makers`, {name of a way: what makes it}, and `args.whose`, the author of diloco's outer step.
    """
    check_output("--out", args.out)
    args.makers, args.whose = WAYS, None
    if args.outer:
        step, args.whose = theirs_or_ours(args.outer, "my_outer_step", my_outer_step)
        args.makers = WAYS | {"diloco": partial(diloco, outer_step=step)}
    if placement.world_size < 2:
        raise ValueError("one rank has nobody to talk to: torchrun --nproc_per_node=2 talk_less.py")
    for name, every in args.ways:
        if args.steps % every:
            raise ValueError(f"{name}:{every} talks after {every} batches, and --steps {args.steps} is no multiple of "
                             "that: ranks would be judged while their weights differ")
    return [part.first(count, placement.device)
            for part, count in zip(rank_program.dataset(args), (None, args.test_samples), strict=True)]


def main():
    parser = rank_program.parser(__doc__, out="write the figures to this file, as JSON", dataset=True, timeout=60)
    add = parser.add_argument
    add("--ways", type=way, nargs="+", default=[way(text) for text in DEFAULT], metavar="WAY[:N]",
        help=f"default: {' '.join(DEFAULT)}")
    add("--seeds", type=from_zero, nargs="+", default=[0, 1, 2], metavar="S",
        help="of weights and order; default: 0 1 2")
    add("--rounds", type=positive(int), default=3, help="of each seed; default: 3")
    add("--steps", type=positive(int), default=64, help="batches of each rank in a round; default: 64")
    add("--test-samples", type=positive(int), default=None, metavar="N", help="default: all")
    add("--outer", type=nonempty_path, metavar="FILE", help="train diloco with my_outer_step of this file")
    parser.set_defaults(model="lenet", channels_last=False)  # diloco reads the weights as one vector
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement()
        train_set, test_set = check(args, placement)
    shortcuts.keep_memory()
    shortcuts.defer_compiler()
    with rank_program.ranks(placement, args.timeout):
        rounds = []
        for row in measure(args, train_set, test_set, placement):
            rounds.append(row)
            if placement.rank == 0:
                speed = row["images"] / row["round"] / row["seconds"]
                print(f"seed {row['seed']}, round {row['round']}: {row['way']:>10}:{row['every']:<3} {speed:8,.0f} "
                      f"images/s, test accuracy {row['accuracy']:.3f}", flush=True)
        if placement.rank == 0:
            shapes = [list(p.shape) for p in models.make_model(args, train_set, placement.device).parameters()]
            rank_program.write_json(args.out, {
                **rank_program.measured_on(placement), "dataset": train_set.name, "samples": len(train_set),
                "shapes": shapes, "steps": args.steps, "outer": args.whose, "rounds": rounds})


if __name__ == "__main__":
    rank_program.start(main)
