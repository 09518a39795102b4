"""What lesson 15 says of its results: each condition once."""

import math

import pytest

from lessons.l15_talk_less import show


def found(**of_ways):
    """Two seeds, two rounds; (seconds of a round, accuracy at the end) of each way."""
    rounds = [{"way": name.split("_")[0], "every": int(name.partition("_")[2] or 1), "seed": seed, "round": number,
               "seconds": seconds, "accuracy": accuracy * number / 2 + 0.01 * seed, "sent": 1000.0 * number}
              for seed in (0, 1) for number in (1, 2) for name, (seconds, accuracy) in of_ways.items()]
    return {"rounds": rounds, "shapes": [(250,)], "world_size": 2, "dataset": "cifar10"}


@pytest.mark.parametrize(("diloco", "said"), [
    ((1.02, 0.60), "**DiLoCo, each 32**: at least 95 %"),
    ((1.02, 0.50), "None of them learns as DDP does after the same images: the nearest, DiLoCo, each 32, has 0.505"),
    ((1.20, 0.60), "of the ceiling's images a second here. The nearest is DiLoCo, each 32 with 83 %"),
])
def test_speed_and_learning_are_judged_together(diloco, said):
    assert said in show.both(found(never=(1.0, 0.55), ddp=(1.5, 0.6), diloco_32=diloco))


def test_ways_are_compared_after_the_same_time():
    run = found(never=(1.0, 0.4), ddp=(2.0, 0.6))
    assert show.all_had(run) == 2
    assert show.in_time(run, 2) == pytest.approx({"never": 0.405, "DDP": 0.305})
    assert math.isnan(show.in_time(run, 1.5)["DDP"]), "nobody judged DDP before its first round was over"
    rows = show.compared(run, show.forecast("ddp", run | {"steps": 1}, 0, 0))
    assert [row["% of the ceiling"] for row in rows] == ["100", "50"] and rows[1]["after 2.0 s"] == "0.305"
    assert show.worst(run) == "never" and show.share(run, "DDP") == pytest.approx(50)


def test_bytes_and_speed_are_told_beside_what_was_predicted():
    run = found(never=(1.0, 0.4), ddp=(2.0, 0.6), local_2=(1.5, 0.5)) | {"steps": 100}
    rows = show.over_link(run, show.forecast("never ddp local:2", run, 0.01, 0))
    assert [list(row.values()) for row in rows] == [
        ["never", "0", "0", "1,000", "–", "–", "100", "100 to 100"],
        ["DDP", "1", "1,000", "1,000", "1.00", "50", "50", "50 to 50"],
        ["local SGD, each 2", "0.5", "500", "1,000", "2.00", "67", "67", "67 to 67"]]


def test_how_much_training_is_judged():
    run = found(never=(1.0, 0.4), diloco_8=(1.0, 0.5)) | {"steps": 16, "samples": 5000}
    for one in run["rounds"]:
        one["images"] = one["round"] * 16 * 64 * 2
    assert show.how_long(run) == ("Each way learnt from 4,096 images, 0.82 of an epoch: 32 batches of each rank, and "
                                  "with DiLoCo, each 8, 4 messages.")


def test_one_seed_is_no_comparison():
    run = found(never=(1.0, 0.4), ddp=(1.5, 0.6), diloco_32=(1.0, 0.6))
    run["rounds"] = [one for one in run["rounds"] if one["seed"] == 0]
    assert "With one seed nobody can say" in show.both(run)


def test_a_link_that_cannot_be_had_is_said():
    assert "Not to be had here: no netem." in show.delayed("no netem") and "This machine can" in show.delayed(None)


def test_a_slow_link_is_told_for_ddp_and_for_who_suffers_least():
    near = found(never=(1.0, 0.4), ddp=(1.25, 0.6), local_8=(1.1, 0.6))
    far = found(never=(1.0, 0.4), ddp=(5.0, 0.6), local_8=(1.25, 0.6))
    assert show.slower(near, far) == ("DDP: 80 % of the ceiling between processes of one machine, 20 % over the link. "
                                      "**local SGD, each 8**: 80 % over the link.")


def test_of_each_kind_the_most_seldom_is_drawn():
    run = found(never=(1.0, 0.4), ddp=(2.0, 0.6), local_8=(1.1, 0.6), local_32=(1.1, 0.6), bf16=(2, 0.6))
    assert show.shown(run) == ["never", "DDP", "local SGD, each 32"]
