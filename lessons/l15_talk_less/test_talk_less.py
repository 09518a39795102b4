"""Lesson 15: each way trains what it says, on ranks and in one process; what it sends; what the program refuses."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course import compare
from course.hosts import Cluster
from course.on_ranks import Measurement
from course.predict.fit import powersgd_values
from lessons.l15_talk_less import show, talk_less, talk_ways
from tests import runner

WHY_NOT = Cluster.available()
SCRIPT = "lessons/l15_talk_less/talk_less.py"
RANKS, EVERY, BATCHES, IMAGES = 3, 3, 6, 5
ROUGH = 15  # batches after which PowerSGD has made five steps that are not exact
SMALL = ["--dataset", "synthetic", "--test-samples", 200, "--seeds", 0, 1, "--rounds", 2, "--steps", 4]

# ------------------------------------------------------------------------------------ the same weights as one process


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


def batches(rank, count=BATCHES):
    numbers = torch.Generator().manual_seed(rank)
    return [(torch.randn(IMAGES, 3, 2, 2, generator=numbers), torch.randint(3, (IMAGES,), generator=numbers))
            for _ in range(count)]


def joined(parts):
    return tuple(torch.cat(kind) for kind in zip(*parts, strict=True))


def weights(trained):
    return parameters_to_vector(trained.parameters()).detach()


def trained(way, given):
    """[weights after BATCHES batches, if there are more; weights after all]"""
    mine, after = model(), []
    update = way(mine, EVERY)
    for number, batch in enumerate(given, 1):
        update(*batch)
        if number in (BATCHES, len(given)):
            after.append(weights(mine))
    return after


def measure(train, context):
    mine = batches(context.rank, ROUGH)
    return {way: [after.tolist() for after in train(make, mine)] for way, make in talk_ways.WAYS.items()}


@pytest.fixture(scope="module")
def on_ranks():
    """{way: {batches: [ranks, values], the weights that each rank has after so many}}."""
    [ranks] = Measurement(measure, "trained").run([(trained, RANKS)])
    return {way: dict(zip((BATCHES, ROUGH), torch.tensor([measured[way] for measured in ranks]).unbind(1), strict=True))
            for way in talk_ways.WAYS}


def one_process(together, count=BATCHES):
    """The updates of one process whose batch is `together` batches of all ranks."""
    of_ranks = [batches(rank, count) for rank in range(RANKS)]
    return trained(talk_ways.never, [joined([batch for own in of_ranks for batch in own[first:first + together]])
                                     for first in range(0, count, together)])[-1]


def walked_apart(agree):
    """All ranks in one process: after EVERY batches all go on from agree(mean of the weights, weights before)."""
    models = [model() for _ in range(RANKS)]
    updates = [talk_ways.never(mine, EVERY) for mine in models]
    before = weights(models[0])
    for number in range(BATCHES):
        for rank, update in enumerate(updates):
            update(*batches(rank)[number])
        if (number + 1) % EVERY == 0:
            before = agree(torch.stack([weights(mine) for mine in models]).mean(0), before)
            for mine in models:
                vector_to_parameters(before.clone(), mine.parameters())
    return before


def nesterov(momentum=0.9, rate=0.7):
    """DiLoCo's outer step by its formula (Sutskever et al. 2013, as PyTorch has it), not by torch.optim."""
    velocity = 0

    def agree(mean, before):
        nonlocal velocity
        gradient = before - mean
        velocity = momentum * velocity + gradient
        return before - rate * (gradient + momentum * velocity)
    return agree


EXPECTED = {
    "ddp": lambda: one_process(1),
    "powersgd": lambda: one_process(1),  # its first ten steps are exact
    "accumulate": lambda: one_process(EVERY),
    "local": lambda: walked_apart(lambda mean, before: mean),
    "diloco": lambda: walked_apart(nesterov()),
}


@pytest.mark.parametrize("way", EXPECTED)
def test_each_way_is_the_training_that_it_says(way, on_ranks):
    mine, expected = on_ranks[way][BATCHES], EXPECTED[way]()
    assert (mine == mine[0]).all(), "all ranks end with the same weights"
    assert (mine[0] - expected).norm() < 1e-4 * (expected - weights(model())).norm()


def test_ranks_that_never_talk_walk_apart(on_ranks):
    mine = on_ranks["never"][BATCHES]
    assert (mine - mine[0]).abs().max() > 1e-4


@pytest.mark.parametrize(("way", "count", "low", "high"), [("bf16", BATCHES, 0, 0.05), ("powersgd", ROUGH, 1e-3, 0.5)])
def test_shorter_messages_are_rough_and_all_ranks_agree(way, count, low, high, on_ranks):
    """PowerSGD, after its first ten steps: of the layer with 8 x 12 weights it sends (8 + 12) * 2 values."""
    mine, exact = on_ranks[way][count], one_process(1, count)
    assert (mine == mine[0]).all()
    assert low < (mine[0] - exact).norm() / (exact - weights(model())).norm() < high


# ------------------------------------------------------------------------------------------------------- the program


# The mean of the weights, and a note of each call: with this step DiLoCo is local SGD.
MEAN = """from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

@torch.no_grad()
def my_outer_step(model, agreed, outer):
    agreed.copy_(parameters_to_vector(model.parameters()))
    dist.all_reduce(agreed)
    agreed /= dist.get_world_size()
    vector_to_parameters(agreed.clone(), model.parameters())
    with Path(__file__).with_name(f"calls{dist.get_rank()}").open("a") as calls:
        calls.write("x")
"""


def test_each_way_is_judged_in_each_round_and_the_learner_s_outer_step_trains_diloco(tmp_path):
    file, out = tmp_path / "answer.py", tmp_path / "x.json"
    file.write_text(MEAN)
    ways = ["never", "ddp", "accumulate:2", "local:4", "diloco:4", "bf16"]
    done = runner.run(2, "--ways", *ways, *SMALL, "--outer", file, "--out", out, script=SCRIPT)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    table = show.rounds(results)
    assert len(table) == 2 * 2 * len(ways) and set(table["round"]) == {1, 2} and set(table["seed"]) == {0, 1}
    assert table["images"].max() == 2 * 4 * 64 * 2
    assert (table["seconds"] > 0).all() and table["accuracy"].between(0, 1).all()
    assert (table[table["way"] == "never"]["share"] == 1).all()
    assert results["outer"] == "yours"
    local, diloco = ([row["accuracy"] for row in results["rounds"] if row["way"] == way] for way in ("local", "diloco"))
    assert diloco == pytest.approx(local, abs=0.011)
    calls = {path.name: len(path.read_text()) for path in tmp_path.glob("calls*")}
    assert calls == {f"calls{rank}": 2 * 2 * 4 // 4 for rank in range(2)}


@pytest.mark.weekly
@pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts: {WHY_NOT}")
def test_the_network_counts_the_bytes_of_the_formula(tmp_path):
    """On hosts of their own, whose links nobody else uses."""
    out = tmp_path / "x.json"
    job = ["torchrun", "--nnodes=2", "--master-addr=node0", "--master-port=29500"]
    program = [SCRIPT, "--ways", "never", "ddp", "bf16", "powersgd", "diloco:32", *SMALL[:-1], 32, "--out", out]
    with Cluster(2) as hosts:
        running = [hosts.start(node, [*job, f"--node-rank={node}", *program], cwd=runner.ROOT,
                               env=runner.environment(OMP_NUM_THREADS="1")) for node in range(2)]
        assert [process.wait(runner.LIMIT) for process in running] == [0, 0]
    results = json.loads(out.read_text())
    rows = {row.way: row for row in show.ways(results).itertuples()}
    formula = {way: show.sent(way, row.every, results["shapes"], 2) for way, row in rows.items()}
    assert rows["never"].sent < 1000
    for way in ("ddp", "bf16", "diloco"):
        assert 1 <= rows[way].sent / formula[way] < 1.1, rows
    over = rows["powersgd"].sent - formula["powersgd"]
    assert 0 < over < 3 * 2500, "three messages, and the headers of each; whole gradients would be 230,000 bytes more"


@pytest.mark.parametrize(("options", "message"), [
    ([], "nobody to talk to"), (["--ways", "local:0"], "--ways"), (["--outer", "README.md"], "README.md")])
def test_bad_input(options, message, tmp_path, refused):
    assert message in refused(talk_less, *SMALL, *options, "--out", tmp_path / "x.json")
    assert not list(tmp_path.iterdir())


def test_a_way_that_would_be_judged_while_weights_differ_is_refused(tmp_path):
    args = SimpleNamespace(out=tmp_path / "x.json", outer=None, ways=[("local", 3)], steps=4)
    with pytest.raises(ValueError, match="local:3"):
        talk_less.check(args, SimpleNamespace(world_size=2))


# ------------------------------------------------------------------------------------------------------- show.py


def test_messages_are_counted_by_hand_for_lenet():
    shapes = [(6, 3, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,), (10, 84), (10,)]
    assert show.messages("ddp", shapes) == (1, 248_024) and show.messages("bf16", shapes) == (1, 124_012)
    thin = 2 * ((6 + 75) + (16 + 150) + (120 + 400) + (84 + 120) + (10 + 84)) + 6 + 16 + 120 + 84 + 10
    assert show.messages("powersgd", shapes) == (3, 4 * thin) and show.messages("never", shapes) == (0, 0)
    assert powersgd_values([(3, 4)], 2) == 12, "two columns would be longer than the matrix"
    assert show.sent("local", 8, shapes, 3) == pytest.approx(4 / 3 * 248_024 / 8)


def made(**of_ways):
    """Results of two seeds and two rounds; {way_every: (seconds of a round, accuracy at the end)}."""
    rounds = [{"way": name.split("_")[0], "every": int(name.partition("_")[2] or 1), "seed": seed, "round": number,
               "seconds": seconds, "accuracy": accuracy * number / 2 + 0.01 * seed, "sent": 1000.0 * number}
              for seed in (0, 1) for number in (1, 2) for name, (seconds, accuracy) in of_ways.items()]
    return {"rounds": rounds, "shapes": [(250,)], "world_size": 2, "dataset": "cifar10", "steps": 10}


def test_the_forecast_is_a_share_of_ranks_that_never_talk():
    table = show.forecast("never ddp diloco:4", made(never=(0.1, 0.5)), 0.009, 1e-6)
    assert list(table["name"]) == ["DDP", "DiLoCo, each 4"]
    assert list(table["share"]) == pytest.approx([0.5, 0.8])
    diloco = SimpleNamespace(way="diloco", every=4)
    assert show.expected(table, diloco) == pytest.approx(0.8), "whoever wrote its outer step"
    assert show.expected(table, SimpleNamespace(way="diloco", every=8)) is None
    assert show.seldom(0.01, 0.009, 1e-6, 1000, 0.8) == 4


def test_ways_are_compared_after_the_same_time():
    results = made(never=(1.0, 0.4), ddp=(2.0, 0.6))
    assert show.all_had(results) == 2
    assert show.in_time(results, 2) == pytest.approx({"never": 0.405, "DDP": 0.305})
    assert math.isnan(show.in_time(results, 1.5)["DDP"]), "nobody judged DDP before its first round was over"
    assert list(show.ways(results)["share"]) == [1, 0.5]


def test_a_way_is_slower_by_six_pairs_and_its_accuracy_stands_beside_ddp_s_of_the_same_seed():
    results = made(never=(1.0, 0.4), ddp=(2.0, 0.6), local_2=(1.0, 0.3))
    table = show.ways(results)
    assert set(table["pairs"]) == {4} and not table["slower"].any() and len(show.both(results)) == 1
    results["rounds"] += [row | {"seed": row["seed"] + 2, "accuracy": row["accuracy"] + 0.02}
                          for row in results["rounds"]]
    table = show.ways(results).set_index("name")
    assert set(table["pairs"]) == {8} and list(table.index[table["slower"]]) == ["DDP"]
    assert show.least(table) == "local SGD"
    _, local = show.both(results)
    assert local.startswith("local SGD, each 2") and str(compare.ratio([0.3, 0.31, 0.32, 0.33], [
        0.6, 0.61, 0.62, 0.63])) in local
