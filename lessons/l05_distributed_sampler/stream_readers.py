"""A stream under DDP: which items each rank and each of its loader workers reads, and what is learned from them.

    torchrun --nproc_per_node=3 lessons/l05_distributed_sampler/stream_readers.py --out results/live/05_readers.json \
        --steps 72 --yours results/live/05_stream.py

Without --yours every reader reads all of it. With --yours and no file after it our stream stands in its place. --steps
trains three times, a network and as many steps each: with the whole stream, with that stream, and with PyTorch's
DistributedSampler. They are the steps in which all ranks together can go once through the images. Notebook 05 draws it.
"""

import copy
import runpy
import time
from itertools import islice

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, get_worker_info

from course import rank_program, shortcuts
from lessons.l05_distributed_sampler.solution import Stream, WholeStream
from trainer import launch, models, options
from trainer.files import check_output

BATCH = 64  # images of a rank's step
POINTS = 6  # at which the accuracy is measured, with so many steps from each to the next
LR = 0.002


class Signed(IterableDataset):
    """A stream's items, each with the number of the worker that reads it."""

    def __init__(self, stream):
        self.stream = stream

    def __iter__(self):
        return ((item, get_worker_info().id) for item in self.stream)


class Images:
    """The first n images of a set: (number, image, label) each. A stream reads them in order, a sampler by number."""

    def __init__(self, images, n):
        self.images, self.n = images, n

    def __len__(self):
        return self.n

    def __getitem__(self, number):
        return number, *self.images[number]

    def __iter__(self):
        return map(self.__getitem__, range(self.n))


def loader(dataset, args, batch_size, sampler=None):
    return DataLoader(dataset, batch_size, sampler=sampler, num_workers=args.workers, timeout=args.timeout,
                      multiprocessing_context="fork")  # a class of a learner's file cannot be sent to spawned workers


def read(stream, args):
    """The items that each loader worker of this rank reads, a list a worker."""
    items = [[] for _ in range(args.workers)]
    for item, worker in loader(Signed(stream(range(args.items))), args, None):
        items[worker].append(item)
    return items


def train(batches, args, model, test_set):
    """{"images", "different" (images that all ranks together have computed), "seconds", "accuracy" (at POINTS)}."""
    ddp_model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), LR)
    numbers_seen, snapshots, start = [], [], time.perf_counter()
    with Join([ddp_model]):  # a right stream may deal unequally: then ranks differ in their number of batches
        for step, (numbers, images, labels) in enumerate(islice(batches, args.steps), 1):
            cross_entropy(ddp_model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            numbers_seen += numbers.tolist()
            if step % (args.steps // POINTS) == 0:
                snapshots.append(copy.deepcopy(model))
    seconds = time.perf_counter() - start
    images, labels = test_set
    with torch.no_grad():
        accuracy = [(each(images).argmax(1) == labels).double().mean().item() for each in snapshots]
    seen = sum(launch.gathered(numbers_seen), [])
    return {"images": len(seen), "different": len(set(seen)), "seconds": seconds, "accuracy": accuracy}


def train_all(stream, args, placement, train_set, test_set):
    """What `train` gives for each way to share the images."""
    source = Images(train_set, args.steps * BATCH * placement.world_size)
    ways = {"whole": loader(WholeStream(source), args, BATCH),
            "mine": loader(stream(source), args, BATCH),
            "sampler": loader(source, args, BATCH, DistributedSampler(source, shuffle=False))}
    torch.manual_seed(0)
    model = models.ConvNet(train_set.images.shape[1], image_size=train_set.images.shape[-1])
    test = test_set.__getitems__(range(1000))
    return {name: train(batches, args, copy.deepcopy(model), test) for name, batches in ways.items()}


def main():
    parser = rank_program.parser(__doc__, out="write who read what to this file, as JSON", dataset=True, timeout=30)
    add = parser.add_argument
    add("--yours", nargs="?", const="", metavar="FILE", help="take the class Stream of this file, or else ours")
    add("--workers", type=options.positive(int), default=2, help="loader workers of each rank")
    add("--items", type=options.positive(int), default=20, help="of the stream that is read without training")
    add("--steps", type=options.positive(int), help=f"train, too: a multiple of {POINTS}, and of --workers")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2:
            raise ValueError("one process has no other rank: start this with torchrun --nproc_per_node=3")
        if (args.steps or 0) % POINTS or (args.steps or 0) % args.workers:
            raise ValueError(f"--steps {args.steps} is no multiple of {POINTS} and of --workers {args.workers}")
        check_output("--out", args.out)
        sets = rank_program.dataset(args) if args.steps else ()
    stream, whose = WholeStream, "every reader reads all"
    if args.yours is not None:
        stream, whose = (runpy.run_path(args.yours)["Stream"], "yours") if args.yours else (Stream, "ours")
    torch.set_num_threads(1)
    with rank_program.ranks(placement, 2 * args.timeout):
        shortcuts.defer_compiler()  # this program compiles nothing
        readers = sum(launch.gathered(read(stream, args)), [])
        trained = train_all(stream, args, placement, *sets) if args.steps else None
    if placement.rank == 0:
        print(f"{placement.world_size} ranks x {args.workers} loader workers: {sum(map(len, readers))} items read, "
              f"{len(set().union(*readers))} of them different")
        rank_program.write_json(args.out, {"whose": whose, "readers": readers, "steps": args.steps,
                                           "trained": trained, "dataset": sets and sets[0].name})


if __name__ == "__main__":
    rank_program.start(main)
