"""The scaling model: cases worked by hand, and its limits."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessons.l08_predict_scaling import scaling
from lessons.l08_predict_scaling.scaling import Job, Link, Measured, StepTime
from scripts.measure import predict

STEP = StepTime(fixed=0.002, per_image=0.0001, backward=0.5)  # 64 images: 8.4 ms, of which backward takes 4.2
MEASURED = Measured({2: (0.001, 1e-9), 4: (0.002, 2e-9), 8: (0.003, 4e-9)})
JOB = Job(STEP, gradient_bytes=1e6, all_reduce=MEASURED, overlap=False)


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
    assert step.communication == step.exposed == exactly(0.001 + 1e-9 * 1e6)  # α + β · bytes
    assert step.seconds == exactly(0.0084 + 0.002)
    assert scaling.speedup(JOB, 2, 64) == (exactly(2 * 8.4 / 10.4), exactly(8.4 / 10.4))
    # strong: each rank has 32 images, 5.2 ms
    assert scaling.speedup(JOB, 2, 64, strong=True)[0] == exactly(8.4 / (5.2 + 2))
    assert replace(JOB, buckets=4).predict(2, 64).communication == exactly(4 * 0.001 + 1e-9 * 1e6)  # an α each


def test_overlap_hides_all_but_the_last_bucket_or_all_but_backward():
    four = replace(JOB, overlap=True, buckets=4).predict(2, 64)  # a bucket every 1.05 ms, each 1.25 ms on its way
    assert four.exposed == exactly(5e-3 - 3 / 4 * 4.2e-3)
    two = replace(JOB, overlap=True, buckets=2).predict(2, 64)  # every 2.1 ms, 1.5 ms on its way: the last is left
    assert two.exposed == exactly(1.5e-3)
    assert replace(JOB, overlap=True).predict(2, 64) == JOB.predict(2, 64)  # one bucket leaves when backward is over


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


def test_an_epoch_is_its_steps_with_a_short_last_one():
    assert JOB.epoch_seconds(1, 64, 130) == exactly(2 * 0.0084 + 0.0022)  # 64, 64, 2
    assert JOB.epoch_seconds(1, 64, 128) == exactly(2 * 0.0084)
    assert JOB.epoch_seconds(4, 64, 130) == exactly(0.002 + 33 * 0.0001 + 0.004)  # padded to 33 each: one step
    assert JOB.epoch_seconds(2, 10, 40) == exactly(2 * (0.003 + 0.002))


def test_the_buckets_of_ddp():
    mb = 2**20
    sizes = [0, 0.25 * mb, mb, mb + 1, 26 * mb, 26 * mb + 1, 97.5 * mb]
    assert [scaling.ddp_buckets(size) for size in sizes] == [1, 1, 1, 2, 2, 3, 5]


# ---------------------------------------------------------------- limits

SECONDS = st.floats(0, 1)
JOBS = st.builds(
    Job,
    step=st.builds(StepTime, st.floats(1e-6, 1), st.floats(0, 0.01), st.floats(0, 1)),
    gradient_bytes=st.floats(0, 1e10),
    all_reduce=st.builds(Link, SECONDS, st.floats(1e3, 1e12)),
    buckets=st.integers(1, 50),
    overlap=st.booleans(),
    cores=st.one_of(st.none(), st.integers(1, 64)),
)
RANKS = st.sampled_from([1, 2, 4, 8, 12, 64])
SLACK = 1 + 1e-9  # rounding


@given(JOBS, RANKS, st.integers(1, 1000))
def test_overlap_is_never_slower_nor_better_than_the_longer_of_the_two(job, ranks, batch):
    hidden, shown = (replace(job, overlap=overlap).predict(ranks, batch) for overlap in (True, False))
    assert hidden.seconds <= shown.seconds * SLACK
    assert hidden.seconds * SLACK >= max(hidden.compute, hidden.communication)
    assert (hidden.compute, hidden.communication) == (shown.compute, shown.communication)


@given(JOBS, RANKS, st.integers(1, 1000), st.integers(1, 100_000), st.booleans())
def test_efficiency_is_above_0_and_at_most_1(job, ranks, batch, samples, strong):
    batch = batch * ranks if strong else batch
    ratio, efficiency = scaling.speedup(job, ranks, batch, strong)
    (row,) = scaling.table(job, [ranks], batch, samples, strong)
    for value in (efficiency, row["efficiency"]):
        assert 0 < value <= SLACK
    assert ratio == pytest.approx(efficiency * ranks) and row["speedup"] == pytest.approx(row["efficiency"] * ranks)


@given(JOBS, RANKS, st.integers(1, 1000), st.integers(1, 100_000))
def test_free_communication_and_enough_cores_are_ideal(job, ranks, batch, samples):
    free = replace(job, all_reduce=Link(0, math.inf), cores=None)
    assert free.predict(ranks, batch).exposed == 0
    assert scaling.speedup(free, ranks, batch) == (pytest.approx(ranks), pytest.approx(1))
    whole = samples * ranks * batch  # divides into whole steps on one rank and on all
    assert scaling.table(free, [ranks], batch, whole)[0]["efficiency"] == pytest.approx(1)


# ---------------------------------------------------------------- when is DDP slower?


def test_when_ddp_is_slower_than_one_process():
    """Weak: two ranks lose while the all-reduce takes longer than a + b·n, for 2 (a + b·n) < a + b·n + all-reduce."""
    slow = replace(JOB, all_reduce=Measured({2: (0.00395, 0)}), gradient_bytes=0)  # a + b·n = 3.95 ms where n = 19.5
    assert {n: scaling.speedup(slow, 2, n)[0] < 1 for n in (1, 19, 20, 21, 64)} == {
        1: True, 19: True, 20: False, 21: False, 64: False}
    assert not any(scaling.speedup(slow, 1, n)[0] < 1 for n in (1, 19, 20, 21, 64))
    # strong: a + b·n against a + b·n/2 + 3.95 ms, equal where n = 79
    assert [scaling.speedup(slow, 2, n, strong=True)[0] < 1 for n in (78, 80)] == [True, False]


# ---------------------------------------------------------------- what cannot be, and the command


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda: StepTime(-1, 0), "less than 0 seconds"),
    (lambda: StepTime(1, 1, backward=1.5), "a share of the step"),
    (lambda: Link(-1, 1), "latency"),
    (lambda: Link(0, 0), "bandwidth must be more than 0"),
    (lambda: replace(JOB, buckets=0), "at least 1"),
    (lambda: JOB.predict(3, 64), "no α and β for 3 ranks; there are some for 2, 4, 8"),
    (lambda: JOB.predict(0, 64), "at least 1 is needed"),
    (lambda: scaling.speedup(JOB, 2, 7, strong=True), "2 ranks do not divide a batch of 7"),
])
def test_impossible_figures_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_the_command_prints_the_table(monkeypatch, capsys):
    command = ["predict.py", "time", "--fixed-ms", "2", "--image-us", "100", "--gradient-mb", "1",
               "--latency-us", "500", "--bandwidth-gbs", "1", "--samples", "128", "--world-sizes", "1", "2"]
    monkeypatch.setattr("sys.argv", command)
    predict.main()
    # 2 · (0.5 ms + 0.5 MB / 1 GB/s) = 2 ms of all-reduce behind 8.4 ms
    assert capsys.readouterr().out.splitlines()[2].split() == [
        "2", "64", "10.40", "2.000", "2.000", "0.01", "12,308", "1.62", "81%"]
    for wrong in (["--bandwidth-gbs", "0"], ["--batch-size", "0"], ["--strong", "--batch-size", "7"]):
        monkeypatch.setattr("sys.argv", command + wrong)
        with pytest.raises(SystemExit, match="2"):
            predict.main()
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("predict.py") and err.count("\n") == 1
