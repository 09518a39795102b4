"""scripts/class_board: a picture of the machines of a class, from their logs."""

import json
import os
import shutil
import sys

import pytest

from course.lesson import ROOT
from teach import board

EXAMPLE = ROOT / "results" / "recorded" / "example-class"


def main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["class_board", *map(str, arguments)])
    return board.main()


@pytest.fixture
def room(tmp_path):
    """Two machines, handed in."""
    for name in ("two-cores", "one-core"):
        shutil.copytree(EXAMPLE / name, tmp_path / "in" / name)
    return tmp_path / "in"


def test_the_example_class_is_drawn(tmp_path, monkeypatch):
    assert main(monkeypatch, EXAMPLE, "--out", tmp_path) == 0
    assert sorted(os.listdir(tmp_path)) == ["board.csv", "board.png", "index.html"]
    page = (tmp_path / "index.html").read_text()
    assert not any(folder.name in page for folder in EXAMPLE.iterdir() if folder.is_dir()), "no folder's name"
    assert (tmp_path / "board.png").read_bytes().startswith(b"\x89PNG")


def test_speed_ups_are_computed_from_the_epochs_of_machines_that_may_have_names(room):
    (room / "one-core" / "name.txt").write_text("Kim\n")
    epochs, left_out = board.read(room)
    table, without = board.speedups(epochs)
    assert left_out == without == [] and list(table.label.unique()) == ["Kim (1)", "machine 2"]

    def speeds(ranks):
        lines = (room / "two-cores" / f"ranks_{ranks}.jsonl").read_text().splitlines()
        return [record["images_per_second"] for record in map(json.loads, lines) if record["kind"] == "epoch"][1:]

    expected = sum(speeds(2)) / sum(speeds(1))  # the median of two epochs, after the first, is their mean
    assert table[(table.label == "machine 2") & (table.ranks == 2)].speedup.item() == pytest.approx(expected)


def test_a_log_that_is_not_drawn_is_named(room):
    log = room / "two-cores" / "ranks_4.jsonl"
    log.write_text("\n".join(log.read_text().splitlines()[:-1]) + "\n")
    (room / "two-cores" / "none.jsonl").write_text("nothing\n")
    epochs, left_out = board.read(room)
    assert [line.partition(":")[0] for line in left_out] == ["two-cores/none.jsonl", "two-cores/ranks_4.jsonl"]
    assert not epochs.file.str.endswith("two-cores/ranks_4.jsonl").any()


def test_nothing_to_draw_is_status_1_and_a_missing_folder_2(tmp_path, monkeypatch, capsys):
    (tmp_path / "in" / "ada").mkdir(parents=True)
    assert main(monkeypatch, tmp_path / "in", "--out", tmp_path / "out") == 1
    with pytest.raises(SystemExit) as end:
        main(monkeypatch, tmp_path / "no", "--out", tmp_path / "out")
    assert end.value.code == 2 and capsys.readouterr().err.count("\n") == 1
