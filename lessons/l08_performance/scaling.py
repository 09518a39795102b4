"""Predict the time of a step on W ranks, from what was measured on one rank and on the links.

A step of one rank takes a + b · batch seconds (`StepTime`), and an all-reduce of the gradients what the links say
(`Link`). `Job` puts the two together. course/interactive/scaling.html computes the same in the browser: a test compares
the two.
"""

import math
from dataclasses import dataclass

from course.predict.fit import ring_seconds

# ---------------------------------------------------------------- one rank


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step of one rank that talks to nobody: fixed + per_image · batch."""

    fixed: float  # a, in seconds: the cost of a step however small the batch (calls, launches, the optimizer's update)
    per_image: float  # b, in seconds: the cost of each image
    # Backward's share of the step, 0 to 1: only it can hide an all-reduce. It computes two products for each one of
    # forward, the gradients of inputs and of weights (Kaplan et al. 2020, arXiv 2001.08361, section 2.1). A run log has
    # the measured share: backward_seconds / seconds on one rank.
    backward: float = 2 / 3

    def __post_init__(self):
        _need(self.fixed >= 0 and self.per_image >= 0, "a step cannot take less than 0 seconds")
        _need(0 <= self.backward <= 1, f"backward is a share of the step, 0 to 1, not {self.backward}")

    def seconds(self, batch: float) -> float:
        return self.fixed + self.per_image * batch


# ---------------------------------------------------------------- all-reduce


@dataclass(frozen=True)
class Link:
    """Joins two ranks. As a job's `all_reduce`: all its links are equal, or this is the slowest."""

    latency: float  # seconds a message takes, however short
    bandwidth: float  # bytes a second, in each direction at once

    def __post_init__(self):
        _need(self.latency >= 0, "a latency cannot be less than 0")
        _need(self.bandwidth > 0, "a bandwidth must be more than 0")

    def seconds(self, bytes: float, ranks: int) -> float:
        """Seconds of an all-reduce around a ring of such links: 2 (W - 1) latency + 2 (W - 1) / W · bytes / bandwidth.

        The second factor is what nccl-tests divides by, so that busbw is the bandwidth of a link.
        """
        return ring_seconds(bytes, ranks, self.latency, 1 / self.bandwidth)


# ---------------------------------------------------------------- many ranks


@dataclass(frozen=True)
class Step:
    """Where the seconds of a step go."""

    compute: float  # forward, backward and update, with waiting for a turn on shared cores
    communication: float  # all-reduces, one after the other
    exposed: float  # the part of the communication that backward does not hide

    @property
    def seconds(self) -> float:
        return self.compute + self.exposed


@dataclass(frozen=True)
class Job:
    """A model, a machine, and how DDP joins them."""

    step: StepTime  # of one rank with one thread
    gradient_bytes: float  # 4 for each trained parameter, in float32
    all_reduce: Link  # the cost of adding up the gradients
    buckets: int = 1  # parts in which the gradients are sent, all of one size; see `ddp_buckets`
    overlap: bool = True  # a bucket is sent while backward goes on, as DDP does; else after it
    cores: int | None = None  # shared by all ranks (GPUs, where ranks share those); None: enough

    def __post_init__(self):
        _need(self.gradient_bytes >= 0, "gradients cannot have less than 0 bytes")
        _need(self.buckets >= 1, "there is at least 1 bucket")
        _need(self.cores is None or self.cores >= 1, "a node has at least 1 core")

    def predict(self, world_size: int, batch: float) -> Step:
        """A step with `batch` images on each of `world_size` ranks.

        More ranks than cores take turns: each step is ranks / cores times as long. With k buckets, of which each
        all-reduce takes c, and a backward of B seconds that fills them evenly, bucket i can leave at i/k · B, and not
        before bucket i - 1 has arrived. The last arrives at the latest of i/k · B + (k - i + 1) c, which is that of
        i = 1 or i = k: what is left after backward is max(c, k c - (k - 1)/k · B). That buckets are sent in order, one
        at a time, while backward goes on: Li et al., VLDB 2020, arXiv 2006.15704, sections 3.2 and 4.2.
        It is the bound for links that cost the cores nothing; where they do, backward itself gets slower.
        """
        _need(world_size >= 1, f"{world_size} ranks: at least 1 is needed")
        turns = max(1, world_size / self.cores) if self.cores else 1
        compute = turns * self.step.seconds(batch)
        bucket = self.all_reduce.seconds(self.gradient_bytes / self.buckets, world_size) if world_size > 1 else 0
        communication = exposed = self.buckets * bucket
        if self.overlap:
            hidden = (self.buckets - 1) / self.buckets * self.step.backward * compute
            exposed = max(bucket, communication - hidden)
        return Step(compute, communication, exposed)


def ddp_buckets(gradient_bytes: float, cap_mb: float = 25, first_mb: float = 1) -> int:
    """How many buckets DDP makes with its defaults: one of 1 MiB, which leaves early, then of 25 MiB (bucket_cap_mb).

    As if a parameter could be cut; DDP keeps each whole, so that its buckets are larger and may be fewer.
    """
    return 1 + math.ceil(max(0, gradient_bytes - first_mb * 2**20) / (cap_mb * 2**20))


def speedup(job: Job, world_size: int, batch_size: int, strong: bool = False) -> tuple[float, float]:
    """(speed-up, efficiency) in images a second against one rank, which takes `batch_size` images a step.

    Weak scaling: so does each of the ranks. `strong`: they share the batch, which they must divide.
    """
    one, many = job.predict(1, batch_size), job.predict(world_size, _of_each_rank(batch_size, world_size, strong))
    ratio = one.seconds / many.seconds * (1 if strong else world_size)
    return ratio, ratio / world_size


def _of_each_rank(batch_size, world_size, strong):
    _need(not strong or batch_size % world_size == 0, f"{world_size} ranks do not divide a batch of {batch_size}")
    return batch_size // world_size if strong else batch_size


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
