"""What lesson 05 says of its results."""

import pytest

from lessons.l05_distributed_sampler import show


def way(losses, off):
    return {"losses": losses, "counts": [1, 1, 1], "gradient_off": off}


@pytest.fixture
def found():
    """Three images with the losses 1, 2, 6 on two ranks."""
    return {"world_size": 2, "images": 3, "loss": 3.0, "one process": [1, 1, 2],
            "padded": way([[1, 6], [2, 1]], 0.34), "dropped": way([[1], [2]], 0.47), "Join": way([[1, 6], [2]], 4e-8),
            "Join, False": way([[1, 6], [2]], 0.7), "apart": {"plain SGD": 0.0, "momentum": 0.0316}}


def test_means_are_those_of_the_images_seen(found):
    one, padded, dropped, join, last = show.averages(found)
    assert (one["images"], one["mean loss"]) == (3, "3.0000")
    assert (padded["images"], padded["mean loss"], padded["its error"]) == (4, "2.5000", "-16.7 %")
    assert list(dropped.values())[1:] == [2, "1.5000", "-50.0 %", "-50.0 %", "47 %"]
    assert list(join.values())[3:] == ["0.0 %", "-8.3 %", "0 %"]
    assert last["average gradient, error"] == "70 %" and "\n" not in last["way"]


def test_counts_have_the_names_of_the_ways(found):
    assert list(show.counts(found)) == ["one process, batches of 2", "padded", "dropped", "Join",
                                        "Join, divided by\nthe ranks left"]
    assert show.counts(found)["one process, batches of 2"] == [1, 1, 2]


def test_momentum_is_blamed_only_where_it_made_a_difference(found):
    assert "0.032** with momentum. Join has sent" in show.momentum(found)
    found["apart"]["momentum"] = 0.0
    assert show.momentum(found).endswith("Here momentum makes no difference.")


def test_accuracies_and_what_a_large_set_hides():
    assert show.accuracies({"padded": 0.4135, "exact": 0.4227}, 0.4227) == [
        {"way": "padded", "accuracy": "41.35 %", "points off": "-0.92"},
        {"way": "exact", "accuracy": "42.27 %", "points off": "+0.00"}]
    assert [tuple(row.values()) for row in show.hidden((97, 10_000), 8)] == [
        ("97", 7, "6.25 points"), ("10,000", 0, "0.00 points")]


def test_the_limit_of_padding_is_the_worst_case():
    """Of 21 images on 8 ranks 3 count twice: k of these are right, and m of the other 18."""
    worst = max(abs((k + m) / 21 - (2 * k + m) / 24) for k in range(4) for m in range(19))
    assert show.hidden((21,), 8)[0]["accuracy off by at most"] == f"{100 * worst:.2f} points"
