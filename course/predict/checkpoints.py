"""How often to write a checkpoint: the share of all time that failures and checkpoints take. All times in seconds.

`every` is the time between two checkpoints, `write` that of writing one, `between` the mean time between two failures
of the job, and `restart` what one failure costs beside the work that is made again: to notice it, and to start again.
The first two shares are those of Young, Communications of the ACM 17(9), 1974, https://doi.org/10.1145/361147.361115.
"""

import numpy as np


def lost(every, write, between, restart):
    """{"writing", "work made again", "restarts": share of the time}, where all of them are small."""
    return {"writing": write / every, "work made again": every / (2 * between), "restarts": restart / between}


def drawn(every, write, between, restart, failures=5000, seed=0):
    """The share by chance instead: failures at random moments. Of the time until each, whole intervals are kept."""
    until = np.random.default_rng(seed).exponential(between, failures)
    kept = until // (every + write) * every
    return 1 - kept.sum() / (until + restart).sum()
