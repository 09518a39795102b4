"""Lesson 15: each way trains what it says, on ranks and in one process; what it sends; what the program refuses."""

import json
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course.hosts import Cluster
from course.on_ranks import Answers
from lessons.l15_talk_less import pictures, show, talk_ways
from lessons.l15_talk_less import predict as talking
from tests import runner

WHY_NOT = Cluster.available()
SCRIPT = "lessons/l15_talk_less/talk_less.py"
EVERY, BATCHES, IMAGES = 3, 6, 5
ROUGH = 15  # batches after which PowerSGD has made five steps that are not exact
SMALL = ["--dataset", "synthetic", "--batch-size", 5, "--test-samples", 11, "--seeds", 0, 1, "--rounds", 2,
         "--steps", 4]

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


def trained(way, given, every=EVERY):
    mine = model()
    update = way(mine, every)
    for batch in given:
        update(*batch)
    return weights(mine)


def measure(way, here):
    return {"weights": trained(way, batches(here.rank)).tolist()}


def measure_longer(way, here):
    return {"weights": trained(way, batches(here.rank, ROUGH)).tolist()}


def one_process(ranks, together, count=BATCHES):
    """The updates of one process whose batch is `together` batches of all ranks."""
    of_ranks = [batches(rank, count) for rank in range(ranks)]
    return trained(talk_ways.never, [joined([one for own in of_ranks for one in own[first:first + together]])
                                     for first in range(0, count, together)])


def walked_apart(ranks, agree):
    """All ranks in one process: after EVERY batches all go on from agree(mean of the weights, weights before)."""
    models = [model() for _ in range(ranks)]
    updates = [talk_ways.never(one, EVERY) for one in models]
    before = weights(models[0])
    for number in range(BATCHES):
        for rank, update in enumerate(updates):
            update(*batches(rank)[number])
        if (number + 1) % EVERY == 0:
            before = agree(torch.stack([weights(one) for one in models]).mean(0), before)
            for one in models:
                vector_to_parameters(before.clone(), one.parameters())
    return before


def nesterov(momentum=0.9, rate=0.7):
    """DiLoCo's outer step by its formula (Sutskever et al. 2013, as PyTorch has it), not by torch.optim."""
    kept = SimpleNamespace(velocity=0)

    def agree(mean, before):
        gradient = before - mean
        kept.velocity = momentum * kept.velocity + gradient
        return before - rate * (gradient + momentum * kept.velocity)
    return agree


EXPECTED = {
    "ddp": lambda ranks: one_process(ranks, 1),
    "powersgd": lambda ranks: one_process(ranks, 1),  # its first ten steps are exact
    "accumulate": lambda ranks: one_process(ranks, EVERY),
    "local": lambda ranks: walked_apart(ranks, lambda mean, before: mean),
    "diloco": lambda ranks: walked_apart(ranks, nesterov()),
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("way", talk_ways.WAYS)
def test_each_way_is_the_training_that_it_says(way, ranks):
    found = Answers({way: measure}).on_each(way, talk_ways.WAYS[way], ranks)
    mine = torch.tensor([one["weights"] for one in found])
    apart = (mine - mine[0]).abs().max()
    if way == "never":
        assert apart > 1e-4
        return
    assert apart == 0, "all ranks end with the same weights"
    moved = (mine[0] - weights(model())).norm()
    if way in EXPECTED:
        assert (mine[0] - EXPECTED[way](ranks)).norm() < 1e-4 * moved
    else:
        assert 0 < (mine[0] - one_process(ranks, 1)).norm() < 0.05 * moved, "16 bits: nearly the same, and not the same"


@pytest.mark.parametrize("ranks", [2, 3])
def test_powersgd_is_rough_after_its_first_ten_steps_and_all_ranks_agree(ranks):
    """Of the layer with 8 x 12 weights, two columns are sent: (8 + 12) * 2 values."""
    found = Answers({"powersgd": measure_longer}).on_each("powersgd", talk_ways.WAYS["powersgd"], ranks)
    mine = torch.tensor([one["weights"] for one in found])
    exact = one_process(ranks, 1, ROUGH)
    assert (mine - mine[0]).abs().max() == 0
    assert 1e-3 < (mine[0] - exact).norm() / (exact - weights(model())).norm() < 0.5


# ------------------------------------------------------------------------------------------------------- the program


@pytest.fixture(scope="module", params=[2, 3], ids="{} ranks".format)
def found(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("talk") / "found.json"
    ways = ["never", "ddp", "accumulate:2", "local:4", "diloco:4", "fp16"]
    done = runner.run(request.param, "--ways", *ways, *SMALL, "--out", out, script=SCRIPT)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 * 2 * len(ways)
    return json.loads(out.read_text())


def test_each_way_is_judged_in_each_round(found):
    table = show.rounds(found)
    assert len(table) == 24 and set(table["round"]) == {1, 2} and set(table["seed"]) == {0, 1}
    assert table["images"].max() == 2 * 4 * 5 * found["world_size"]
    assert (table["seconds"] > 0).all() and table["accuracy"].between(0, 1).all()
    assert (table[table["way"] == "never"]["share"] == 1).all()
    assert list(show.ways(found)["name"]) == ["never", "DDP", "accumulate, each 2", "local SGD, each 4",
                                              "DiLoCo, each 4", "DDP, fp16"]


def test_pictures_and_tables_are_made_of_it(found):
    forecast = show.forecast("ddp local:4 fp16", found, 1e-4, 1e-9)
    fig = pictures.fast_and_good(show.ways(found), forecast, "title")
    assert [text.get_text() for text in fig.axes[0].get_yticklabels()] == list(show.ways(found)["name"])
    ax = pictures.by_time(show.rounds(found), show.shown(found), plt.subplots()[1], "title")
    assert {text.get_text() for text in ax.texts} == {
        "SYNTHETIC DATA", "never", "DDP", "accumulate, each 2", "local SGD, each 4", "DiLoCo, each 4"}
    for each in (fig.axes[0], ax):
        assert [text.get_text() for text in each.texts if "SYNTHETIC" in text.get_text()] == ["SYNTHETIC DATA"]
    assert len(show.compared(found, forecast)) == 6
    plt.close("all")


@pytest.mark.skipif(WHY_NOT is not None, reason=f"no hosts: {WHY_NOT}")
def test_the_network_counts_the_bytes_of_the_formula(tmp_path):
    """On hosts of their own, whose links nobody else uses."""
    out = tmp_path / "found.json"
    job = ["torchrun", "--nnodes=2", "--master-addr=node0", "--master-port=29500"]
    program = [SCRIPT, "--ways", "never", "ddp", "bf16", "powersgd", "diloco:32", *SMALL[:-1], 32, "--out", out]
    with Cluster(2) as hosts:
        running = [hosts.start(node, [*job, f"--node-rank={node}", *program], cwd=runner.ROOT,
                               env=runner.environment(OMP_NUM_THREADS="1")) for node in range(2)]
        assert [process.wait(runner.LIMIT) for process in running] == [0, 0]
    read = json.loads(out.read_text())
    rows = {row["way"]: row for row in show.over_link(read, show.forecast("ddp", read, 0, 0))}
    assert int(rows["never"]["counted"].replace(",", "")) < 1000
    for way in ("DDP", "DDP, bf16", "DiLoCo, each 32"):
        assert 1 <= float(rows[way]["counted / formula"]) < 1.1, rows
    counted, formula = (int(rows["DDP, PowerSGD"][name].replace(",", "")) for name in ("counted", "bytes: formula"))
    over = counted - formula
    assert 0 < over < 3 * 2500, "three messages, and the headers of each; whole gradients would be 230,000 bytes more"


@pytest.mark.parametrize(("ranks", "options", "said"), [
    (0, [], "one rank has nobody to talk to"),
    (0, ["--ways", "gossip"], "--ways: invalid way value: 'gossip'"),
    (0, ["--ways", "local:0"], "invalid way value"),
    (2, ["--ways", "local:3"], "local:3 talks after 3 batches, and --steps 4 is no multiple"),
    (2, ["--ways", "ddp", "--batch-size", 100_000], "are no batch of 100000 for each of 2 ranks"),
])
def test_bad_input_is_one_line(ranks, options, said, tmp_path):
    done = runner.run(ranks, *SMALL, *options, "--out", tmp_path / "found.json", script=SCRIPT)
    assert done.returncode == 2 and len(done.stderr.splitlines()) <= max(1, ranks), done.stderr
    assert all(said in line for line in done.stderr.splitlines()), done.stderr
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------------- prediction


def test_messages_are_counted_by_hand_for_lenet():
    shapes = [(6, 3, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 400), (120,), (84, 120), (84,), (10, 84), (10,)]
    assert talking.messages("ddp", shapes) == (1, 248_024) and talking.messages("bf16", shapes) == (1, 124_012)
    thin = 2 * ((6 + 75) + (16 + 150) + (120 + 400) + (84 + 120) + (10 + 84)) + 6 + 16 + 120 + 84 + 10
    assert talking.messages("powersgd", shapes) == (3, 4 * thin) and talking.messages("never", shapes) == (0, 0)
    assert talking.thin((3, 4)) == 12, "two columns would be longer than the matrix"
    assert talking.sent({"way": "local", "every": 8}, shapes, 3) == pytest.approx(4 / 3 * 248_024 / 8)
    assert talking.seconds({"way": "local", "every": 8}, shapes, 0.01, 8e-4, 0) == pytest.approx(0.0101)


def test_the_forecast_is_a_share_of_ranks_that_never_talk():
    never = {"steps": 10, "shapes": [(250,)], "rounds": [{"way": "never", "every": 1, "seconds": 0.1}]}
    table = show.forecast("never ddp diloco:4", never, 0.009, 1e-6)
    assert list(table["name"]) == ["DDP", "DiLoCo, each 4"]
    assert list(table["share"]) == pytest.approx([0.5, 0.8])
    assert show.forecasts(table)[0] == {"way": "DDP", "talks after batches": 1, "messages": 1,
                                        "their bytes": "1,000", "predicted, % of the ceiling": "50"}


def test_no_row_is_lost_where_no_way_was_predicted():
    table = pd.DataFrame(columns=["name", "share"])
    never = {"way": "never", "every": 1, "seed": 0, "round": 1, "seconds": 1.0, "accuracy": 0.5, "sent": 0.0}
    assert show.compared({"rounds": [never], "dataset": "cifar10"}, table)[0]["predicted"] == "–"
