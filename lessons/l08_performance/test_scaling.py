"""The scaling model: cases worked by hand, and what it refuses."""

import math
from dataclasses import replace

import pytest

from lessons.l08_performance import scaling
from lessons.l08_performance.scaling import Job, Link, StepTime

STEP = StepTime(fixed=0.002, per_image=0.0001, backward=0.5)  # 64 images: 8.4 ms, of which backward takes 4.2
JOB = Job(STEP, gradient_bytes=1e6, all_reduce=Link(0.0005, 1e9), overlap=False)  # 2 ranks: 1 + 1 ms


def exactly(value):
    return pytest.approx(value, rel=1e-12)


# ---------------------------------------------------------------- worked by hand


def test_one_rank_is_one_device_whatever_the_links():
    for job in (JOB, replace(JOB, overlap=True, buckets=7), replace(JOB, all_reduce=Link(1, 1), cores=1)):
        step = job.predict(1, 64)
        assert step.seconds == step.compute == STEP.seconds(64) == exactly(0.0084)
        assert step.communication == step.exposed == 0
        assert scaling.speedup(job, 1, 64) == scaling.speedup(job, 1, 64, strong=True) == (1, 1)


def test_without_overlap_compute_and_communication_add_up():
    step = JOB.predict(2, 64)
    assert step.communication == step.exposed == exactly(0.001 + 1e-9 * 1e6)
    assert step.seconds == exactly(0.0084 + 0.002)
    assert scaling.speedup(JOB, 2, 64) == (exactly(2 * 8.4 / 10.4), exactly(8.4 / 10.4))
    # strong: each rank has 32 images, 5.2 ms
    assert scaling.speedup(JOB, 2, 64, strong=True)[0] == exactly(8.4 / (5.2 + 2))
    assert replace(JOB, buckets=4).predict(2, 64).communication == exactly(4 * 0.001 + 1e-9 * 1e6)  # a latency each


def arrival(job, world_size, batch):
    """When the last bucket has arrived, followed bucket by bucket; seconds after the step's start."""
    step = job.predict(world_size, batch)
    backward, each, free = job.step.backward * step.compute, step.communication / job.buckets, 0.0
    for number in range(1, job.buckets + 1):
        free = max(free, backward * number / job.buckets) + each
    return step.compute - backward + free


@pytest.mark.parametrize("buckets", [1, 2, 3, 10, 100])
def test_the_formula_of_overlap_is_what_following_each_bucket_gives(buckets):
    job = replace(JOB, overlap=True, buckets=buckets)
    for world_size in (2, 4, 8):
        assert job.predict(world_size, 64).seconds == exactly(arrival(job, world_size, 64))


def test_a_ring_has_the_bus_bandwidth_of_its_links():
    for ranks in (2, 3, 100):
        seconds = Link(0, 25e9).seconds(1e9, ranks)
        assert 2 * (ranks - 1) / ranks * 1e9 / seconds == exactly(25e9)  # nccl-tests, doc/PERFORMANCE.md


def test_more_ranks_than_cores_take_turns():
    job = replace(JOB, cores=2)
    assert [job.predict(ranks, 64).compute for ranks in (1, 2, 4, 8)] == [exactly(0.0084 * n) for n in (1, 1, 2, 4)]
    with pytest.raises(ValueError, match="at least 1 core"):
        replace(JOB, cores=0)
    free = replace(job, all_reduce=Link(0, math.inf))
    assert [scaling.speedup(free, ranks, 64)[0] for ranks in (1, 2, 4, 8)] == [1, 2, 2, 2]


def test_the_buckets_of_ddp():
    mb = 2**20
    sizes = [0, 0.25 * mb, mb, mb + 1, 26 * mb, 26 * mb + 1, 97.5 * mb]
    assert [scaling.ddp_buckets(size) for size in sizes] == [1, 1, 1, 2, 2, 3, 5]


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda: StepTime(-1, 0), "less than 0 seconds"),
    (lambda: StepTime(1, 1, backward=1.5), "a share of the step"),
    (lambda: Link(-1, 1), "latency"),
    (lambda: Link(0, 0), "bandwidth must be more than 0"),
    (lambda: replace(JOB, buckets=0), "at least 1"),
    (lambda: JOB.predict(0, 64), "at least 1 is needed"),
    (lambda: scaling.speedup(JOB, 2, 7, strong=True), "2 ranks do not divide a batch of 7"),
])
def test_impossible_figures_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
