"""DistributedDataParallel from nothing, a small difference at a time. Notebook 06 reads and draws this.

    torchrun --nproc_per_node=2 lessons/l06_ddp/ddp_from_scratch.py --step independent broadcast \
        --out results/live/06_start.json

The steps are whole training loops. Each starts from other weights on every rank, and is compared after every update
between the ranks, and with one process that trains on the whole batches. The ranks run on CPUs with gloo, so that every
machine shows the same. ddp_questions.py, beside this file, asks DDP the questions that follow.
"""

import os
import time
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import data
import launch
import models
import shortcuts
from course import rank_program
from files import check_output
from options import positive

BATCH = 16  # images of an update, for each rank; divisible by 4, for the steps that cut it in four equal parts
BUCKET_BYTES = 40_000  # of the own steps: LeNet's gradients then fill three
LR = 0.05

# ---------------------------------------------------------------------------------------------- from nothing to DDP


def independent(model, batches, optimizer):
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def broadcast(model, batches, optimizer):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def average(model, batches, optimizer):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()


def bucketed(model, batches, optimizer):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    buckets = make_buckets(model)
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        for bucket in buckets:
            flat = pack(bucket)
            dist.all_reduce(flat)
            unpack(flat / dist.get_world_size(), bucket)
        optimizer.step()


def hooked(model, batches, optimizer):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    buckets = make_buckets(model)

    def send_if_full(bucket, parameter):
        if all(other.grad is not None for other in bucket):
            flat = pack(bucket)
            dist.all_reduce(flat)
            unpack(flat / dist.get_world_size(), bucket)

    for bucket in buckets:
        for parameter in bucket:
            parameter.register_post_accumulate_grad_hook(partial(send_if_full, bucket))
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()


def overlapped(model, batches, optimizer):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    buckets = make_buckets(model)
    underway = []

    def send_if_full(bucket, parameter):
        if all(other.grad is not None for other in bucket):
            flat = pack(bucket)
            underway.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    for bucket in buckets:
        for parameter in bucket:
            parameter.register_post_accumulate_grad_hook(partial(send_if_full, bucket))
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        for bucket, flat, work in underway:
            work.wait()
            unpack(flat / dist.get_world_size(), bucket)
        underway.clear()
        optimizer.step()


def ddp(model, batches, optimizer):
    parallel = DistributedDataParallel(model)
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(parallel(images), labels).backward()
        optimizer.step()


def make_buckets(model):
    """The parameters in lists of about BUCKET_BYTES; the last layer first, as backward reaches it first."""
    buckets, filled = [[]], 0
    for parameter in reversed(list(model.parameters())):
        if filled >= BUCKET_BYTES:
            buckets, filled = [*buckets, []], 0
        buckets[-1].append(parameter)
        filled += parameter.nbytes
    return buckets


def pack(bucket):
    return torch.cat([parameter.grad.flatten() for parameter in bucket])


def unpack(flat, bucket):
    for parameter, part in zip(bucket, flat.split([parameter.numel() for parameter in bucket]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


# ---------------------------------------------------------------------------------------------- the proof


@dataclass
class Lab:
    """What every step gets: the options, its rank, and the images."""

    args: object
    placement: launch.Placement
    whole: list
    """(images, labels) of each update, for one process: all ranks' images"""
    dataset: str

    @property
    def shards(self):
        """This rank's part of each whole batch, strided as DistributedSampler's."""
        mine = slice(self.placement.rank, None, self.placement.world_size)
        return [(images[mine], labels[mine]) for images, labels in self.whole]

    def model(self, kind=models.ConvNet, seed=0):
        torch.manual_seed(seed)
        info = data.DATASETS[self.dataset]
        return kind(info.shape[0], len(info.classes), info.shape[1])

    def sgd(self, model):
        return torch.optim.SGD(model.parameters(), lr=LR)

    @cached_property
    def weights_of_one_process(self):
        """[updates + 1, weights]: those of one process on the whole batches, before each update and after the last."""
        seen, model = [], self.model()
        independent(model, watched(self.whole, model, seen), self.sgd(model))
        return torch.stack(seen)


def flat_weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def between_ranks(rows):
    """Largest difference between any two ranks in each row of [n, values], as a list of n."""
    high, low = rows.clone(), rows.clone()
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    return (high - low).amax(dim=1).tolist()


def worst(differences):
    """Largest absolute value in each row of [n, values] on any rank, as a list of n."""
    rows = differences.abs().amax(dim=1)
    dist.all_reduce(rows, op=dist.ReduceOp.MAX)
    return rows.tolist()


def watched(batches, model, seen):
    """Yields the batches. `seen` gets the weights before each update and after the last."""
    for batch in batches:
        seen.append(flat_weights(model))
        yield batch
    seen.append(flat_weights(model))


def prove(step, lab):
    """Largest difference of a weight, between the ranks and from one process: a value before and after each update."""
    seen, model = [], lab.model(seed=lab.placement.rank)
    step(model, watched(lab.shards, model, seen), lab.sgd(model))
    weights = torch.stack(seen)
    return {"between_ranks": between_ranks(weights), "from_one_process": worst(weights - lab.weights_of_one_process),
            "messages": messages(step, lab)}


class Messages(TorchDispatchMode):
    """Counts the all-reduces that start inside its `with` block, including DDP's."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += operation is torch.ops.c10d.allreduce_.default
        return operation(*args, **(kwargs or {}))


def messages(step, lab, make=None):
    """All-reduces of one update of the model that `make` returns."""
    model = (make or lab.model)()
    with Messages() as seen:
        step(model, lab.shards[:1], lab.sgd(model))
    return seen.count


STEPS = {step.__name__: step for step in (independent, broadcast, average, bucketed, hooked, overlapped, ddp)}

# ---------------------------------------------------------------------------------------------- command


def get_parser(description=__doc__, steps=STEPS):
    parser = rank_program.parser(description, out="write the results to this file, as JSON: {step: its results}",
                                 dataset=True, timeout=60)
    add = parser.add_argument
    add("--step", nargs="+", required=True, choices=steps, metavar="NAME", help=f"one or more of: {', '.join(steps)}")
    add("--steps", type=positive(int), default=20, help="updates of each training loop")
    return parser


def check(args, placement):
    """Raise a ValueError of one line for options that cannot work, before any rank waits for another."""
    if placement.world_size < 2:
        raise ValueError("this compares ranks: start two or more, torchrun --nproc_per_node=2 lessons/l06_ddp/...")
    available = data.DATASETS["cifar10" if args.dataset == "auto" else args.dataset].sizes[0]
    needed = args.steps * BATCH * placement.world_size
    if needed > available:
        raise ValueError(f"--steps {args.steps} needs {needed} training images; {args.dataset} has {available}")
    check_output("--out", args.out)


def run(parser, steps):
    """Join the ranks, take each --step, and write the results. `steps`: {name: a function of the Lab}."""
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement(backend="gloo")
        check(args, placement)
        train_set, _ = rank_program.dataset(args)
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # before CUDA starts: SyncBatchNorm is compared in full precision
    size = BATCH * placement.world_size
    batches = [train_set.__getitems__(range(step * size, (step + 1) * size)) for step in range(args.steps)]
    lab = Lab(args, placement, batches, train_set.name)
    results = {"world_size": placement.world_size, "dataset": train_set.name}
    with rank_program.ranks(placement, args.timeout):
        shortcuts.defer_compiler()  # this program compiles nothing
        for name in args.step:
            start = time.perf_counter()
            results[name] = steps[name](lab)
            if placement.rank == 0:
                print(f"{name:11} done in {time.perf_counter() - start:.1f} s", flush=True)
    if placement.rank == 0:  # all ranks have ended their steps: the results are whole
        rank_program.write_json(args.out, results)


def main():
    run(get_parser(), {name: partial(prove, step) for name, step in STEPS.items()})


if __name__ == "__main__":
    rank_program.start(main)
