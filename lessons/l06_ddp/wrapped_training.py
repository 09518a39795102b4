"""LeNet, trained under one wrapper after another: do the ranks stay one model, and is it the model of one process?

    torchrun --nproc_per_node=2 lessons/l06_ddp/wrapped_training.py --wrapper none lessons/l06_ddp/my_ddp.py:MyDDP ddp \
        --out results/live/06_wrapped.json

none: each rank for itself. ddp: DistributedDataParallel. FILE.py:CLASS: a class of one's own, as of main.py --wrapper.
Each training starts from other weights on every rank. After every update the weights are compared between the ranks,
and with those of one process that trains on the whole batches. The ranks run on CPUs with gloo, so that every machine
shows the same. ddp_questions.py, beside this file, asks DDP the questions that follow.
"""

import os
import time
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course import rank_program, shortcuts
from course.sent import Sent
from trainer import data, files, launch, models
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
        train(model, watched(self.whole, model, seen), self.sgd(model))
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


def prove(wrap, lab):
    """Largest difference of a weight, between the ranks and from one process: a value before and after each update; and
    how many collectives an update calls."""
    seen, model = [], lab.model(seed=lab.placement.rank)
    train(wrap(model), watched(lab.shards, model, seen), lab.sgd(model))
    weights = torch.stack(seen)
    return {"between_ranks": between_ranks(weights), "from_one_process": worst(weights - lab.weights_of_one_process),
            "messages": sent_by(wrap, lab.model(), lab).calls.total()}


def sent_by(wrap, model, lab):
    """The messages of the first update of the model."""
    wrapped, sent = wrap(model), Sent()
    with sent:
        train(wrapped, lab.shards[:1], lab.sgd(model))
    return sent


def wrapper(name):
    """The class, or function, that `--wrapper` names."""
    return {"none": lambda model: model, "ddp": DistributedDataParallel}.get(name) or files.from_file(name)


# ---------------------------------------------------------------------------------------------- command


def get_parser(description=__doc__):
    parser = rank_program.parser(description, out="write the results to this file, as JSON: {name: its results}",
                                 dataset=True, timeout=60)
    parser.add_argument("--steps", type=positive(int), default=20, help="updates of each training loop")
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


def main():
    parser = get_parser()
    parser.add_argument("--wrapper", nargs="+", required=True, metavar="NAME", help="none, ddp or FILE.py:CLASS")
    args = parser.parse_args()
    with parser.one_line():
        experiments = {name: partial(prove, wrapper(name)) for name in args.wrapper}
    run(args, parser, experiments)


if __name__ == "__main__":
    rank_program.start(main)
