"""Lesson 05's stream, dealt out to the readers of all ranks; and the one that it stands for, read whole by each."""

from itertools import islice

import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info


class WholeStream(IterableDataset):
    def __init__(self, source):  # runs in the rank
        self.source = source
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def __iter__(self):  # runs in each loader worker, or in the rank if it has none
        return iter(self.source)


class Stream(WholeStream):
    def __iter__(self):
        worker = get_worker_info()  # None where the rank itself reads
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        return islice(self.source, self.rank * workers + number, None, self.world_size * workers)
