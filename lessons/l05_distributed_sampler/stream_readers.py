"""Which items of a stream each rank reads, and each of its loader workers.

    torchrun --nproc_per_node=3 lessons/l05_distributed_sampler/stream_readers.py --out results/live/05_readers.json \
        --stream results/live/05_stream.py:Stream

Without --stream every reader reads all of it. A --stream that cannot be read, as a learner's that is not written yet,
is replaced by ours, and the results say so. Notebook 05 draws them.
"""

import gc
from itertools import islice

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import files
import launch
import options
from course import rank_program
from files import check_output
from lessons.l05_distributed_sampler import check


class Signed(IterableDataset):
    """A stream's items, each with the number of the worker that reads it."""

    def __init__(self, stream):
        self.stream = stream

    def __iter__(self):
        return ((item, get_worker_info().id) for item in self.stream)


def read(stream, args):
    """The items that each loader worker of this rank reads, a list a worker."""
    loader = DataLoader(Signed(stream(range(args.items))), batch_size=None, num_workers=args.workers,
                        multiprocessing_context="fork", timeout=args.timeout)
    items = [[] for _ in range(args.workers)]
    for item, worker in islice(loader, 10 * args.workers * args.items):  # a learner's may have no end
        items[worker].append(item)
    return items


def read_learners(args):
    """The same of --stream; None on all ranks if it fails on one."""
    try:
        items = read(files.from_file(args.stream), args)
    except Exception:  # the learner's: the check says what is wrong with it
        items = None
    gc.collect()  # a failed iterator that lives on would complain in each worker that is forked from here
    of_ranks = launch.gathered(items)
    return None if None in of_ranks else of_ranks


def main():
    parser = rank_program.parser(__doc__, out="write who read what to this file, as JSON", timeout=30)
    parser.add_argument("--stream", metavar="FILE.py:CLASS", help="an IterableDataset, made from its source alone")
    parser.add_argument("--workers", type=options.positive(int), default=2, help="loader workers of each rank")
    parser.add_argument("--items", type=options.positive(int), default=20)
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2:
            raise ValueError("one process has no other rank: start this with torchrun --nproc_per_node=3")
        check_output("--out", args.out)
    with rank_program.ranks(placement, 2 * args.timeout):
        if args.stream:
            whose, of_ranks = "Your stream", read_learners(args)
            if of_ranks is None:
                whose, of_ranks = "Our stream (yours does not read yet)", launch.gathered(read(check.Stream, args))
        else:
            whose, of_ranks = "Each reader reads the whole stream", launch.gathered(read(check.WholeStream, args))
    if placement.rank == 0:
        readers = [items for of_workers in of_ranks for items in of_workers]
        print(f"{placement.world_size} ranks x {args.workers} loader workers: {sum(map(len, readers))} items read, "
              f"{len(set().union(*readers))} of them different")
        rank_program.write_json(args.out, {"whose": whose, "readers": readers, "workers": args.workers})


if __name__ == "__main__":
    rank_program.start(main)
