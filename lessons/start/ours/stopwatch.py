"""The time, read when the work is done that was begun before it."""

import time

import torch


def now(device):
    """Seconds, as time.perf_counter(), once a GPU has done all that it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
