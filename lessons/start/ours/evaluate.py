"""The accuracy on a test set that no number of ranks need divide."""

import torch

BATCH = 250  # images at a time


@torch.no_grad()
def evaluate(model, batch, n, rank, world_size, all_reduce):
    """The share of the first n test images that the model gets right, each counted once, on every rank.

    batch(indices) gives (images, labels); all_reduce(tensor) adds up over the ranks. The model is not the wrapped one:
    shards may differ in length.
    """
    mine = range(rank, n, world_size)
    right = torch.zeros(())
    for start in range(0, len(mine), BATCH):
        images, labels = batch(list(mine[start:start + BATCH]))
        right += (model(images).argmax(1) == labels).sum().cpu()
    all_reduce(right)  # counts can be added up; means of unequal shards cannot
    return right.item() / n
