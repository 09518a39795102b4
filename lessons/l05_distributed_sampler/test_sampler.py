"""Lesson 05: what padding costs, streams read by ranks and their loader workers, shards of unequal length."""

import itertools
import json
import re
from collections import Counter

import pytest
from torch.utils.data import DistributedSampler

from lessons.l05_distributed_sampler import check, show, uneven_shards
from tests import runner

READERS, UNEVEN = (f"lessons/l05_distributed_sampler/{name}.py" for name in ("stream_readers", "uneven_shards"))


def sampler_shards(n, world_size, **options):
    """The items of each rank, in order, as PyTorch gives them without shuffling."""
    return [list(DistributedSampler(range(n), world_size, rank, shuffle=False, **options))
            for rank in range(world_size)]


def test_the_bound_on_the_error_of_padding_holds_and_is_sharp():
    """Worst cases: the sampler repeats the first items, so hits on the first j, or misses on them."""
    for n, world_size in itertools.product((1, 2, 3, 7, 8, 20, 21), (1, 2, 3, 8)):
        items = list(itertools.chain(*sampler_shards(n, world_size)))
        copies, worst = len(items) - n, 0.0
        for j, first in itertools.product(range(n + 1), (True, False)):
            right = [(item < j) == first for item in range(n)]
            worst = max(worst, abs(sum(right[item] for item in items) / len(items) - sum(right) / n))
        if copies < n:
            assert worst == pytest.approx((n - copies) / n - (n - copies) / (n + copies))
        else:
            assert worst <= copies / (n + copies)


# ------------------------------------------------------------------------------------------- a stream

STUB = re.search(r"^# %%writefile results/live/05_stream.py\n(.+?)\n+# %%", (
    runner.ROOT / "notebooks/text/05_distributed_sampler.py").read_text(), re.M | re.S)[1]
WORKER = """worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        """
BLOCKS = f"""{WORKER}items, first = list(self.source), self.rank * workers + number
        yield from items[len(items) * first // (self.world_size * workers):
                         len(items) * (first + 1) // (self.world_size * workers)]"""
DEALT = f"""{WORKER}for place, item in enumerate(self.source):
            if place % (self.world_size * workers) == self.rank * workers + number:
                yield item"""


def in_a_file(folder, body):
    """The lesson's own cell, with this in place of its stub."""
    path = folder / "answer.py"
    path.write_text(STUB.replace("raise NotImplementedError", body))
    return path


@pytest.mark.parametrize(("body", "outcome"), [(BLOCKS, "right"), ("while True: yield 0", "wrong")])
def test_blocks_pass_and_a_stream_without_end_does_not_hang(body, outcome, tmp_path, monkeypatch):
    monkeypatch.setattr(check.stream, "mistakes", {})  # tests/test_exercises.py runs them
    assert check.stream.verdict(in_a_file(tmp_path, body))[0] == outcome


def test_the_learner_s_stream_trains_once_through_the_images_and_the_whole_stream_repeats_them(tmp_path):
    done = runner.run(2, "--out", tmp_path / "mine.json", "--steps", 6, "--dataset", "synthetic", "--yours",
                      in_a_file(tmp_path, DEALT), script=READERS)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "mine.json").read_text())
    assert results["whose"] == "yours" and results["readers"] == [list(range(20))[reader::4] for reader in range(4)]
    images = 6 * 2 * 64
    assert [(way["images"], way["different"]) for way in show.stream_ways(results).values()] == [
        (images, images / 4), (images, images), (images, images)]


# ------------------------------------------------------------------------------------------- shards of unequal length


def test_of_uneven_shards_one_waits_and_join_counts_each_image_once(tmp_path):
    ranks, n = 3, uneven_shards.IMAGES  # in the last step one rank is left
    done = runner.run(ranks, "--timeout", 2, "--dataset", "synthetic", "--out", tmp_path / "results.json",
                      script=UNEVEN)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["uneven"]["ranks"] == [0] and results["uneven"]["step"] == 4
    assert 2 <= results["uneven"]["seconds"] < 20
    for way, drop_last in (("padded", False), ("dropped", True)):
        shards = sampler_shards(n, ranks, drop_last=drop_last)
        seen = Counter(itertools.chain(*shards))
        assert results[way]["shards"] == shards
        assert results[way]["counts"] == pytest.approx([seen[item] for item in range(n)], abs=1e-3)
        assert results[way]["gradient_off"] > 0.01
    assert results["Join"]["shards"] == [list(range(rank, n, ranks)) for rank in range(ranks)]
    assert results["Join"]["counts"] == pytest.approx([1] * n, abs=1e-3) and results["Join"]["gradient_off"] < 1e-4
    last = [1] * (n - 1) + [ranks]  # the last image has a step for itself
    assert results["Join, False"]["counts"] == pytest.approx(last, abs=1e-3)
    assert results["one process"] == pytest.approx(last, abs=1e-3)
    losses = list(itertools.chain(*results["Join"]["losses"]))
    assert sum(losses) / n == pytest.approx(results["loss"], rel=1e-5)
    assert results["apart"]["plain SGD"] < 1e-6 < results["apart"]["momentum"]


def test_ranks_that_would_have_equal_shards_are_refused(tmp_path, refused):
    assert "uneven shards of 10 images" in refused(uneven_shards, "--out", tmp_path / "results.json", ranks=2)
