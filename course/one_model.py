"""Small trainings on ranks, compared with one process that trains on the whole batches: for programs of lessons on DDP.

Such a program asks experiments, functions of a `Lab`, and `run` writes what each of them finds. The ranks run on CPUs
with gloo, so that every machine shows the same.
"""

import os
import time
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from course import rank_program, shortcuts
from course.sent import Sent
from trainer import data, launch, models
from trainer.files import check_output
from trainer.options import positive

BATCH = 16  # images of an update, for each rank; divisible by 4, for the questions that cut it in four equal parts
LR = 0.05


def train(model, batches, optimizer):
    for images, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        if hasattr(model, "finish"):  # MyDDP's; DistributedDataParallel is done when backward() returns
            model.finish()
        optimizer.step()


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
        train(model, watched(self.whole, model, seen), self.sgd(model))
        return torch.stack(seen)


def flat_weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def flat_gradient(model):
    """The gradients as one flat tensor; zeros for a parameter without gradient."""
    return torch.cat([(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).flatten()
                      for parameter in model.parameters()])


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


def sent_by(wrap, model, lab):
    """The messages of the first update of the model."""
    wrapped, sent = wrap(model), Sent()
    with sent:
        train(wrapped, lab.shards[:1], lab.sgd(model))
    return sent


# ---------------------------------------------------------------------------------------------- command


def get_parser(description):
    parser = rank_program.parser(description, out="write the results to this file, as JSON: {name: its results}",
                                 dataset=True, timeout=60)
    parser.add_argument("--steps", type=positive(int), default=20, help="updates of each training loop")
    return parser


def check(args, placement):
    """Raise a ValueError of one line for options that cannot work, before any rank waits for another."""
    if placement.world_size < 2:
        raise ValueError("this compares ranks: start two or more, torchrun --nproc_per_node=2 ...")
    available = data.DATASETS["cifar10" if args.dataset == "auto" else args.dataset].sizes[0]
    needed = args.steps * BATCH * placement.world_size
    if needed > available:
        raise ValueError(f"--steps {args.steps} needs {needed} training images; {args.dataset} has {available}")
    check_output("--out", args.out)


def run(args, parser, experiments):
    """Join the ranks, and write what each experiment finds: {name: a function of the Lab}."""
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
        for name, experiment in experiments.items():
            start = time.perf_counter()
            results[name] = experiment(lab)
            if placement.rank == 0:
                print(f"{name} done in {time.perf_counter() - start:.1f} s", flush=True)
    if placement.rank == 0:  # all ranks have ended: the results are whole
        rank_program.write_json(args.out, results)
