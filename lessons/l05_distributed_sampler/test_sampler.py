"""Lesson 05: what counts as right beside the solution, and which part and which network the lesson takes."""

import random

import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler

from lessons.l05_distributed_sampler import check, program


@pytest.mark.parametrize(("n", "world_size"), [(24, 1), (24, 2), (24, 3), (21, 7)])
def test_the_program_s_shard_is_that_of_the_sampler_index_for_index(n, world_size):
    for rank in range(world_size):
        sampler = DistributedSampler(range(n), world_size, rank)
        sampler.set_epoch(5)
        assert check.our_shard(n, rank, world_size, 5) == list(sampler)


def of_python(n, rank, world_size, epoch):
    order = list(range(n))
    random.Random(f"epoch {epoch}").shuffle(order)
    return order[world_size - 1 - rank::world_size]  # dealt from the last rank on


def padded(n, rank, world_size, epoch):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(epoch))
    return order.repeat(2)[rank:n + -n % world_size:world_size]  # a tensor


def reseeding(n, rank, world_size, epoch):
    torch.manual_seed(epoch)
    return torch.randperm(n).tolist()[rank::world_size]


@pytest.mark.parametrize(("answer", "remark"), [(of_python, False), (padded, False), (reseeding, True)])
def test_another_shuffle_another_dealer_and_padding_are_right(answer, remark):
    before = torch.get_rng_state()
    outcome, message = check.shard.verdict(answer)
    assert (outcome, "torch's own generator" in message) == ("right", remark)
    assert torch.equal(before, torch.get_rng_state()), "the notebook's own numbers stay as they were"


def test_blocks_and_whole_numbers_are_right_too(tmp_path, monkeypatch):
    monkeypatch.setattr(check.evaluate, "mistakes", {})  # tests/test_exercises.py runs them
    answer = tmp_path / "evaluate.py"
    answer.write_text("""def evaluate(model, batch, n, rank, world_size, all_reduce):
    images, labels = batch(list(range(n * rank // world_size, n * (rank + 1) // world_size)))
    right = (model(images).argmax(dim=-1) == labels).sum()
    all_reduce(right)
    return right / n
""")
    assert check.evaluate.verdict(answer)[0] == "right"


def test_a_part_and_the_network_are_the_learner_s_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "lessons/start/ours").mkdir(parents=True)
    for folder in ("mine", "lessons/start/ours"):
        (tmp_path / folder / "shard.py").write_text(f"def shard(): return {folder!r}")
    shard, whose = program.part("shard")
    assert (shard(), whose) == ("mine", "yours")
    (tmp_path / "mine/shard.py").unlink()
    shard, whose = program.part("shard")
    assert (shard(), whose) == ("lessons/start/ours", "ours")
    (tmp_path / "mine/train.py").write_text("model = nn.Linear(4, 2).to(device)\nraise SystemExit\n")
    theirs = nn.Linear(4, 2)
    torch.save(theirs.state_dict(), "weights.pt")
    assert torch.equal(program.network("weights.pt").weight, theirs.weight)
