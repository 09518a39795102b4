"""Eight images that come from a stream, read by two ranks through a DataLoader."""

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        for image in range(8):
            yield image, f"rank {rank} of {ranks}"


dist.init_process_group("gloo")
mine = [image for images, _ in DataLoader(Stream(), batch_size=2) for image in images.tolist()]
seen = [None] * dist.get_world_size()
dist.all_gather_object(seen, mine)
if dist.get_rank() == 0:
    for rank, images in enumerate(seen):
        print(f"rank {rank} reads:", *images)
    print(f"{sum(map(len, seen))} images read, {len(set().union(*seen))} of them different")
dist.destroy_process_group()
