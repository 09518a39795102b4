"""Lesson 05: DistributedSampler against a brute-force model that deals items like cards, streams read by ranks and
their loader workers, the results of uneven_shards.py, and the pictures."""

import itertools
import json
import re
from collections import Counter

import pytest
from matplotlib.colors import to_hex
from torch.utils.data import DistributedSampler

from course.plots.style import COLOURS
from lessons.l05_distributed_sampler import check, show, uneven_shards
from tests import runner


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


READERS = "lessons/l05_distributed_sampler/stream_readers.py"
STUB = re.search(r"^# %%writefile results/live/05_stream.py\n(.+?)\n+# %%", (
    runner.ROOT / "notebooks/text/05_distributed_sampler.py").read_text(), re.M | re.S)[1]
WORKER = """worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        """


def in_a_file(folder, body):
    """The lesson's own cell, with this in place of its stub."""
    path = folder / "answer.py"
    path.write_text(STUB.replace("raise NotImplementedError", body))
    return path


@pytest.mark.parametrize(("body", "outcome", "message"), [
    (f"""{WORKER}items, first = list(self.source), self.rank * workers + number
        yield from items[len(items) * first // (self.world_size * workers):
                         len(items) * (first + 1) // (self.world_size * workers)]""", "right", "Each item is read"),
    ("iter(self.source)", "wrong", "Not yet. Your __iter__ returned None. Is its return missing?"),
    ("return iter([get_worker_info().id])", "wrong",
     "With num_workers=0 the rank itself reads, and get_worker_info() returns None."),
    ("while True: yield 0", "wrong", "2 ranks, num_workers=0: 1 items are read more than once, 22 by nobody."),
])
def test_any_way_to_share_a_stream_that_is_right_passes(body, outcome, message, tmp_path, monkeypatch):
    monkeypatch.setattr(check.stream, "_mistake_behind", lambda *_: "")  # tests/test_exercises.py runs the mistakes
    verdict = check.stream.verdict(in_a_file(tmp_path, body))
    assert verdict[0] == outcome and message in verdict[1], verdict


def readers(ranks, path, *options):
    done = runner.run(ranks, "--out", path, *options, script=READERS)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


def test_readers_of_the_lesson_s_stream_repeat_it_and_the_learner_s_stream_trains_once_through_the_images(tmp_path):
    right = in_a_file(tmp_path, f"""{WORKER}for place, item in enumerate(self.source):
            if place % (self.world_size * workers) == self.rank * workers + number:
                yield item""")
    results = readers(2, tmp_path / "all.json", "--workers", 3, "--items", 4)
    assert results["readers"] == [[0, 1, 2, 3]] * 6 and results["trained"] is None
    results = readers(2, tmp_path / "mine.json", "--steps", 6, "--dataset", "synthetic", "--yours", right)
    assert results["whose"] == "yours" and results["readers"] == [list(range(20))[reader::4] for reader in range(4)]
    whole, mine, sampler = show.stream_ways(results).values()
    images = 6 * 2 * 64
    assert [way["images"] for way in (whole, mine, sampler)] == [images] * 3
    assert [way["different"] for way in (whole, mine, sampler)] == [images / 4, images, images]
    ax = show.stream_curves(results)
    assert list(ax.lines[1].get_ydata()) == [100 * share for share in mine["accuracy"]]
    assert list(ax.lines[1].get_xdata()) == [1, 2, 3, 4, 5, 6]
    assert [text.get_text() for text in ax.texts] == [
        "every reader reads all", "yours: each item once", "DistributedSampler"]


# ------------------------------------------------------------------------------------------- shards of unequal length


UNEVEN = "lessons/l05_distributed_sampler/uneven_shards.py"


def test_of_uneven_shards_one_waits_and_join_counts_each_image_once(tmp_path):
    ranks, n = 3, uneven_shards.IMAGES  # in the last step one rank is left
    done = runner.run(ranks, "--timeout", 2, "--dataset", "synthetic", "--out", tmp_path / "results.json",
                      script=UNEVEN)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["uneven"]["ranks"] == [0] and results["uneven"]["step"] == 4
    assert 2 <= results["uneven"]["seconds"] < 20
    assert done.stdout.count("\n") == 1 and f"waited {results['uneven']['seconds']:.1f} s in step 4" in done.stdout

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


def test_ranks_that_would_have_equal_shards_are_refused_in_one_line(tmp_path):
    two = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    done = runner.run(0, "--out", tmp_path / "results.json", script=UNEVEN, **two)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not list(tmp_path.iterdir())
    assert "2 rank(s) cannot have uneven shards of 10 images" in done.stderr


def test_means_are_those_of_the_images_seen():
    """Three images with the losses 1, 2, 6 on two ranks."""
    losses = {"padded": [[1, 6], [2, 1]], "dropped": [[1], [2]], "Join": [[1, 6], [2]], "Join, False": [[1, 6], [2]]}
    results = {"images": 3, "loss": 3.0} | {way: {"losses": losses[way], "gradient_off": 0.47} for way in losses}
    _, padded, dropped, join, _ = show.averages(results)
    assert (padded["images"], padded["mean loss"], padded["its error"]) == (4, "2.5000", "-16.7 %")
    assert list(dropped.values())[1:] == [2, "1.5000", "-50.0 %", "-50.0 %", "47 %"]
    assert list(join.values())[3:5] == ["0.0 %", "-8.3 %"]


# ------------------------------------------------------------------------------------------- pictures


def cells(ax):
    """(item, row, hatched) of each cell of a map."""
    return {(round(p.get_x() + 0.45), round(p.get_y() + 0.45), bool(p.get_hatch())) for p in ax.patches}


def test_the_map_marks_items_that_are_seen_again_or_by_nobody():
    ax = show.sampler_map(sampler_shards(20, 2), 20)
    assert cells(ax) == {(item, item % 2, False) for item in range(20)}
    assert [text.get_text() for text in ax.texts] == [*map(show.ordinal, range(1, 11))] * 2
    assert [show.ordinal(number) for number in (1, 2, 3, 11, 21)] == ["1st", "2nd", "3rd", "11th", "21st"]
    ax = show.sampler_map(sampler_shards(3, 8), 3)
    assert cells(ax) == {(rank % 3, rank, rank >= 3) for rank in range(8)}
    ax = show.sampler_map(sampler_shards(21, 2, drop_last=True), 21)
    assert cells(ax) == {(item, item % 2, False) for item in range(20)}
    assert [text.get_position() for text in ax.texts if text.get_text() == "×"] == [(20, 0), (20, 1)]


def test_the_map_of_loader_workers_has_a_row_for_each_and_the_colour_of_its_rank():
    ax = show.sampler_map([[0, 1], [0, 1], [2], []], 4, workers=2)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "rank 0, worker 0", "rank 0, worker 1", "rank 1, worker 0", "rank 1, worker 1"]
    assert cells(ax) == {(0, 0, False), (1, 0, False), (0, 1, True), (1, 1, True), (2, 2, False)}
    assert [to_hex(patch.get_edgecolor()).upper() for patch in ax.patches] == [COLOURS[0]] * 4 + [COLOURS[1]]
    assert {text.get_position() for text in ax.texts if text.get_text() == "×"} == {(3, row) for row in range(4)}


def test_the_map_of_several_epochs_has_a_row_for_each_epoch_and_a_colour_for_each_rank():
    ax = show.sampler_map({epoch: sampler_shards(3, 2) for epoch in (0, 1)}, 3)
    drawn = [(round(p.get_x() + 0.45), to_hex(p.get_edgecolor()).upper(), round(p.get_height(), 2)) for p in ax.patches]
    first, second = COLOURS[:2]
    assert drawn == [(0, first, 0.45), (0, second, 0.45), (1, second, 0.9), (2, first, 0.9)] * 2, "item 0 is shared"
