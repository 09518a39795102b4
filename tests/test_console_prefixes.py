"""The prefixes that launchers put before a rank's line: rank 0's figures are taken, or the reader says that it cannot
tell."""

import pytest

from course import console

PREFIXES = ["[default{r}]:", "[host{r}]:", "[1,{r}]<stdout>:", "[prterun-n1-123@1,{r}]<stdout>: ", "[{r}] ",
            "[1,mpirank:{r},algo-1]<stdout>:", "{r}: ", "job-ft3/{r} ", "[pod/train-worker-{r}/pytorch] ",
            "trainer-{r}  | "]
RAY = ["(RayTrainWorker pid=10{r}, ip=10.0.0.1) ", "\x1b[36m(RayTrainWorker pid=10{r})\x1b[0m "]


def read(prefix, stamp):
    """(losses of the epochs, notes) of a console on which rank 1 was the first to print each epoch."""
    notes = []
    lines = [f"{stamp}{prefix.format(r=rank)}Epoch: {epoch}, Loss: {rank + 1}.5, acc: 0.32, time cost: 33.72s\n"
             for epoch in range(2) for rank in (1, 0)]
    return [row["loss"] for row in console.read("".join(lines), notes)[1].values()], notes


@pytest.mark.parametrize("stamp", ["", "2026-11-24T10:00:00.1234567Z "], ids=["", "stamped"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_rank_0s_figures_are_taken(prefix, stamp):
    assert read(prefix, stamp) == ([1.5, 1.5], [])


@pytest.mark.parametrize("prefix", RAY)
def test_a_prefix_without_a_rank_is_said(prefix):
    assert any("does not say which rank" in note for note in read(prefix, "")[1])
