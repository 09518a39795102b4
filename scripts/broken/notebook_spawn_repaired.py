"""What a notebook's cells hold: a function, and a call that starts it in two processes."""

import torch.multiprocessing as mp

from scripts.broken.worker import train

mp.spawn(train, nprocs=2)
