"""What lesson 05 says of DistributedSampler, held against a brute-force model of it that deals items like cards; and
what uneven_shards.py finds out about DDP."""

import itertools
import json
import types
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

import data
import models
import utils
from lessons.l05_distributed_sampler import check as lesson_05
from tests import runner

SIZES = [1, 2, 3, 7, 8, 15, 16, 20, 21, 97, 100]
WORLDS = [1, 2, 3, 4, 5, 7, 8, 64]
each_world = pytest.mark.parametrize("world_size", WORLDS)


def sampler_shards(n, world_size, epoch=0, **options):
    """The items of each rank, in order, as PyTorch gives them."""
    samplers = [DistributedSampler(range(n), world_size, rank, **options) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    shards = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(shard) for shard in shards]
    return shards


def dealt(order, world_size, drop_last):
    """The order dealt one by one, round by round. The last round is filled from the first item on, or not dealt."""
    rounds, left_over = divmod(len(order), world_size)
    deck = itertools.cycle(order)
    hands = [[] for _ in range(world_size)]
    for _ in range(rounds + (left_over > 0 and not drop_last)):
        for hand in hands:
            hand.append(next(deck))
    return hands


def order(n, shuffle, seed=0, epoch=0):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist() if shuffle else range(n)


@each_world
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_sampler_deals_like_cards(world_size, shuffle, drop_last):
    for n, seed, epoch in itertools.product([*SIZES, *range(22, 48)], (0, 5), (0, 1, 2)):
        shards = sampler_shards(n, world_size, epoch, shuffle=shuffle, seed=seed, drop_last=drop_last)
        assert shards == dealt(order(n, shuffle, seed, epoch), world_size, drop_last), (n, seed, epoch)


@each_world
@pytest.mark.parametrize("n", SIZES)
def test_padding_repeats_less_than_a_world_and_drop_last_leaves_out_less_than_one(n, world_size):
    for shuffle in (False, True):
        padded = list(itertools.chain(*sampler_shards(n, world_size, shuffle=shuffle)))
        assert set(padded) == set(range(n))
        assert len(padded) - n == -n % world_size <= world_size - 1
        dropped = list(itertools.chain(*sampler_shards(n, world_size, shuffle=shuffle, drop_last=True)))
        assert len(set(dropped)) == len(dropped) and n - len(dropped) == n % world_size <= world_size - 1


def test_a_set_smaller_than_the_world_is_empty_with_drop_last():
    assert sampler_shards(3, 8, shuffle=False) == [[0], [1], [2], [0], [1], [2], [0], [1]]
    assert sampler_shards(3, 8, drop_last=True) == [[]] * 8


def test_without_set_epoch_every_epoch_is_the_first():
    sampler = DistributedSampler(range(50), 2, 0)
    first = list(sampler)
    assert list(sampler) == list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_the_next_seed_has_the_next_epochs_order():
    assert sampler_shards(50, 2, epoch=1, seed=0) == sampler_shards(50, 2, epoch=0, seed=1)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_step_of_all_ranks_is_a_step_of_one_process_with_the_global_batch(shuffle):
    n, world_size, batch_size = 80, 4, 5
    loaders = [DataLoader(range(n), batch_size, sampler=DistributedSampler(range(n), world_size, rank, shuffle=shuffle))
               for rank in range(world_size)]
    alone = DataLoader(range(n), batch_size * world_size, sampler=DistributedSampler(range(n), 1, 0, shuffle=shuffle))
    for batches, whole in zip(zip(*loaders, strict=True), alone, strict=True):
        assert sorted(torch.cat(batches).tolist()) == sorted(whole.tolist())


def test_sampler_and_shuffle_exclude_each_other():
    with pytest.raises(ValueError, match="mutually exclusive"):
        DataLoader(range(20), sampler=DistributedSampler(range(20), 2, 0), shuffle=True)


@each_world
@pytest.mark.parametrize("n", SIZES)
def test_the_solution_agrees_with_the_sampler(n, world_size):
    """More cases than the exercise's own check tries."""
    shards = sampler_shards(n, world_size, shuffle=False)
    assert [lesson_05.shard.answer(n, rank, world_size) for rank in range(world_size)] == shards


class Watched(data.ImageSet):
    """An image set that notes which images it was asked for."""

    def __getitems__(self, indices):
        self.asked = [*getattr(self, "asked", []), *indices]
        return super().__getitems__(indices)


@each_world
@pytest.mark.parametrize("n", [n for n in SIZES if n < 25])
def test_main_py_evaluates_each_image_once(n, world_size):
    images = Watched("synthetic", torch.zeros(n, 3, 32, 32, dtype=torch.uint8), torch.zeros(n, dtype=torch.int64))
    model = models.ConvNet()
    for rank in range(min(n, world_size)):  # where there is no process group, evaluate() takes its shard's sums alone
        here = types.SimpleNamespace(rank=rank, world_size=world_size, device=torch.device("cpu"))
        utils.evaluate(model, images, here)
    assert sorted(images.asked) == list(range(n))


@each_world
@pytest.mark.parametrize("n", [n for n in SIZES if n < 25])
def test_the_bound_on_the_error_of_padding_holds_and_is_sharp(n, world_size):
    """Worst cases: the sampler repeats the first items, so hits on the first j, or misses on them."""
    items = list(itertools.chain(*sampler_shards(n, world_size, shuffle=False)))
    copies = len(items) - n
    worst = 0.0
    for j, first in itertools.product(range(n + 1), (True, False)):
        right = [(item < j) == first for item in range(n)]
        error = sum(right[item] for item in items) / len(items) - sum(right) / n
        again = [right[i % n] for i in range(n, n + copies)]
        if copies:
            assert error == pytest.approx(copies / (n + copies) * (sum(again) / copies - sum(right) / n))
        worst = max(worst, abs(error))
    assert worst <= copies / (n + copies) <= (world_size - 1) / (n + world_size - 1)
    if 0 < copies < n:
        assert worst == pytest.approx(copies / (n + copies) * (1 - copies / n))


# ------------------------------------------------------------------------------------------- shards of unequal length


UNEVEN = "lessons/l05_distributed_sampler/uneven_shards.py"


@pytest.mark.parametrize(("ranks", "n"), [(3, 10), (2, 5)])
def test_of_uneven_shards_one_waits_and_join_counts_each_image_once(ranks, n, tmp_path):
    done = runner.run(ranks, "--images", n, "--timeout", 4, "--dataset", "synthetic", "--out", tmp_path / "found.json",
                      script=UNEVEN)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    alone, step = n % ranks, n // ranks + 1
    assert found["uneven"]["ranks"] == list(range(alone)) and found["uneven"]["step"] == step
    assert 4 <= found["uneven"]["seconds"] < 20
    assert done.stdout.count("\n") == 1 and f"waited {found['uneven']['seconds']:.1f} s in step {step}" in done.stdout

    for way, drop_last in (("padded", False), ("dropped", True)):
        shards = sampler_shards(n, ranks, shuffle=False, drop_last=drop_last)
        seen = Counter(itertools.chain(*shards))
        assert found[way]["shards"] == shards
        assert found[way]["counts"] == pytest.approx([seen[item] for item in range(n)], abs=1e-3)
        assert found[way]["gradient_off"] > 0.01
    assert found["Join"]["shards"] == [list(range(rank, n, ranks)) for rank in range(ranks)]
    assert found["Join"]["counts"] == pytest.approx([1] * n, abs=1e-3) and found["Join"]["gradient_off"] < 1e-4
    last = [1] * (n - alone) + [ranks / alone] * alone  # the images of the last step share it
    assert found["Join, False"]["counts"] == pytest.approx(last, abs=1e-3)
    assert found["one process"] == pytest.approx(last, abs=1e-3)
    losses = list(itertools.chain(*found["Join"]["losses"]))
    assert sum(losses) / n == pytest.approx(found["loss"], rel=1e-5)
    assert found["apart"]["plain SGD"] < 1e-6 < found["apart"]["momentum"]


@pytest.mark.parametrize(("ranks", "arguments", "said"), [
    (0, [], "--images 10 on 1 rank(s)"), (2, [], "does not divide"), (3, ["--images", 2], "--images 2 on 3"),
    (3, ["--out", "."], "is a folder"),
])
def test_uneven_shards_refuses_in_one_line_what_cannot_be(ranks, arguments, said, tmp_path):
    done = runner.run(ranks, "--out", tmp_path / "found.json", *arguments, script=UNEVEN)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
