"""What a notebook's cells hold: a function, and a call that starts it in two processes."""

import torch.multiprocessing as mp


def train(rank):
    print(f"rank {rank} trains", flush=True)


mp.spawn(train, nprocs=2)
