"""Train a model that recognises who speaks, from recordings of different lengths.

    torchrun --nproc_per_node=2 jobs/job_4815.py [--shard FILE]

`shard(lengths, rank, world_size)` of FILE says which recordings a rank takes. (The recordings are random numbers here.)
"""

import argparse
import runpy
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

RECORDINGS, PER_BATCH = 192, 8  # of all ranks; of a rank


def manifest():
    """Frames of each recording, as the data set lists them."""
    drawn = torch.empty(RECORDINGS).log_normal_(4.3, 0.7, generator=torch.Generator().manual_seed(0))
    return sorted(drawn.clamp(16, 400).int().tolist())


def shard(lengths, rank, world_size):
    """The recordings of this rank: its part of the list."""
    part = len(lengths) // world_size
    return list(range(rank * part, (rank + 1) * part))


class Speaker(nn.Module):
    def __init__(self, width=128, speakers=20):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, speakers)

    def forward(self, frames, padded):
        return self.head(self.encoder(frames, src_key_padding_mask=padded).mean(1))


def batch(lengths, indices):
    """The frames of these recordings, [B, longest, 128], where they are padding, and the speakers, [B]."""
    recordings = [torch.randn(lengths[index], 128, generator=torch.Generator().manual_seed(index))
                  for index in indices]
    padded = torch.arange(max(map(len, recordings))) >= torch.tensor([len(each) for each in recordings]).unsqueeze(1)
    return pad_sequence(recordings, batch_first=True), padded, torch.tensor([index % 20 for index in indices])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shard", metavar="FILE", help="whose shard() to take")
    parser.add_argument("--steps", type=int, default=24, help="at most; an epoch of two ranks has 12")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Speaker())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    lengths = manifest()
    mine = (runpy.run_path(args.shard)["shard"] if args.shard else shard)(lengths, rank, world_size)
    batches = [mine[first:first + PER_BATCH] for first in range(0, len(mine), PER_BATCH)]
    order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(1))  # the same on all ranks
    seconds = []
    for step in order[:args.steps].tolist():
        start = time.perf_counter()
        frames, padded, speakers = batch(lengths, batches[step])
        loss = cross_entropy(model(frames, padded), speakers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        print(f"loss {loss.item():.3f}, {1000 * statistics.median(seconds):.0f} ms per step, "
              f"{len(seconds)} steps in {sum(seconds):.2f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
