"""scripts/class_board: machines, not people; only what a log can be; redrawn, and the winner repeated."""

import json
import os
import re
import shutil
import sys
import zlib
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest

from course.lesson import ROOT
from teach import board, handed_in
from trainer import options

EXAMPLE = ROOT / "results" / "recorded" / "example-class"


@pytest.fixture
def room(tmp_path):
    """Two machines, handed in."""
    for name in ("two-cores", "one-core"):
        shutil.copytree(EXAMPLE / name, tmp_path / "in" / name)
    return tmp_path / "in"


def changed(path, change):
    """Write the log with records changed, and their checksums right, as a cheat would."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        del record["crc"]
        change(record)
    texts = [json.dumps(record)[:-1] for record in records]
    path.write_text("".join(f'{text}, "crc": {zlib.crc32(text.encode())}}}\n' for text in texts))


def epochs_of(path):
    return [record for record in map(json.loads, path.read_text().splitlines()) if record["kind"] == "epoch"]


def main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["class_board", *map(str, arguments)])
    return board.main()


def test_the_example_class_is_drawn(tmp_path, capsys, monkeypatch):
    assert main(monkeypatch, EXAMPLE, "--out", tmp_path) == 0
    printed = capsys.readouterr().out
    assert " ".join(sorted(os.listdir(tmp_path))) == "board.csv board.png index.html race.csv race.png"
    assert [f"machine {number}" in printed for number in range(1, 7)] == [True] * 5 + [False]
    assert "the race: machine" in printed and "left out" not in printed
    page = (tmp_path / "index.html").read_text()
    assert not any(folder.name in page for folder in EXAMPLE.iterdir() if folder.is_dir()), "no folder's name"
    assert 'alt="' in page and "refresh" not in page


def test_speed_ups_and_the_race_are_recomputed_from_the_epochs(room):
    epochs, refused = board.read(room)
    table, more = board.speedups(epochs)
    assert refused == [] and list(table.label.unique()) == ["machine 1", "machine 2"]
    assert [(path.name, why) for path, _, why in more] == 2 * [("race.jsonl", "samples 50000, not 6400")]
    two, alone = ([epoch["images_per_second"] for epoch in epochs_of(room / "two-cores" / f"ranks_{ranks}.jsonl")[1:]]
                  for ranks in (2, 1))
    expected = sum(two) / sum(alone)  # the median of two epochs, after the first, is their mean
    assert table[(table.label == "machine 2") & (table.ranks == 2)].speedup.item() == pytest.approx(expected)
    won = board.race(epochs)
    assert len(won) == 2 and won.seconds.is_monotonic_increasing
    for row in won.itertuples():
        records = epochs_of(Path(row.file))
        reached = next(record["epoch"] for record in records if record["val_accuracy"] >= board.GOAL)
        assert row.seconds == pytest.approx(sum(record["seconds"] for record in records if record["epoch"] <= reached))
    changed(Path(won.file[0]), lambda record: record.update(test_samples=500) if record["kind"] == "run" else None)
    assert len(board.race(board.read(room)[0])) == 1, "not all test images, or not their whole number"


def test_a_machine_has_the_name_that_its_learner_wrote_and_nobody_is_another_s(room):
    shutil.copytree(EXAMPLE / "two-threads", room / "zoe")
    names = {"one-core": "Kim", "two-cores": "Kim", "zoe": "machine 2"}
    for folder, name in names.items():
        (room / folder / "name.txt").write_text(name)
    assert [*board.read(room)[0].label.unique()] == ["Kim (1)", "Kim (2)", "machine 2 (3)"]
    (room / "one-core" / "name.txt").write_text("Ada\x1b[31m Lovelace" + "x" * 100 + "\nsecond line\n")
    (room / "two-cores" / "name.txt").unlink()
    (room / "two-cores" / "name.txt").symlink_to("/etc/hostname")
    assert [*board.read(room)[0].label.unique()][:2] == ["Ada[31m Lovelace" + "x" * 24 + " (1)", "machine 2"]


def test_no_folder_s_name_is_on_the_page_though_files_are_left_out(room, tmp_path, capsys, monkeypatch):
    for path in (room / "two-cores").glob("*.jsonl"):
        (path.with_name(f"not-{path.name}")).write_text("nothing\n")
    shutil.copy(room / "two-cores" / "ranks_4.jsonl", room / "one-core" / "copied.jsonl")
    (room / "linked").symlink_to("two-cores")
    (room / "locked.ipynb").write_text('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{}]}')
    assert main(monkeypatch, room, "--out", tmp_path / "out") == 0
    printed, page = capsys.readouterr().out, (tmp_path / "out" / "index.html").read_text()
    assert f"left out: linked (no machine): {handed_in.LINK}" in printed
    assert "left out: two-cores/not-ranks_1.jsonl (machine 2): neither" in printed
    assert re.search("machine 2: 2 cores.* 4: ", page), "who copied a run of 4 ranks has taken nobody's"
    assert "left out: machine 2: neither" in page and "left out: machine 1: the same run as a log of machine 2" in page
    assert not any(name in page for name in ("two-cores", "one-core", "linked", "locked", "jsonl"))


def test_a_notebook_is_a_machine_whatever_its_learner_signs_with(tmp_path, monkeypatch):
    (tmp_path / "room" / "deep").mkdir(parents=True)
    names = ['"Ben"', r'"$\\foo$"', "5", "lesson.begin", "None"]
    for learner, name in enumerate(names):
        notebook = nbformat.read(ROOT / "notebooks" / "07_performance.ipynb", as_version=4)
        for cell in notebook.cells:
            cell.source = cell.source.replace("board_name = None", f"board_name = {name}")
        nbformat.write(notebook, tmp_path / "room" / f"{learner}.ipynb")
    notebook.cells.append(nbformat.v4.new_code_cell("x = " + "1+" * 20_000 + "1"))
    nbformat.write(notebook, tmp_path / "room" / "deep" / "07.ipynb")
    assert main(monkeypatch, tmp_path / "room", "--out", tmp_path / "out") == 0
    page, table = (tmp_path / "out" / "index.html").read_text(), pd.read_csv(tmp_path / "out" / "board.csv")
    for label in ("Ben (1)", r"$\foo$ (2)", "machine 3", "machine 4", "machine 5"):
        assert f"{label}: 2 cores, AMD EPYC" in page
        assert list(table[table.label == label].ranks) == [1, 2, 4, 8]


def every(kind, **values):
    """A change of records of a kind: a value, or a function of the record."""
    def change(record):
        if record["kind"] == kind:
            record.update({name: value(record) if callable(value) else value for name, value in values.items()})
    return change


@pytest.mark.parametrize(("change", "message"), [
    (every("epoch", val_accuracy=0.55512345), "no whole number"),
    (every("epoch", seconds=lambda epoch: epoch["seconds"] / (2 + epoch["epoch"])), "longer than the epoch|do not fit"),
    (every("end", seconds=0.01), "than the whole run"),
    (every("run", dataset="synthetic", synthetic=True), "synthetic"),
    (every("epoch", seconds=0.0), "not above 0|longer")])
def test_a_log_that_contradicts_itself_is_named_and_left_out(change, message, room):
    changed(room / "two-cores" / "ranks_2.jsonl", change)
    epochs, refused = board.read(room)
    assert [(path.name, machine) for path, machine, _ in refused] == [("ranks_2.jsonl", "machine 2")]
    assert re.search(message, refused[0][2]), refused
    assert len(epochs) and not epochs["file"].str.endswith("two-cores/ranks_2.jsonl").any()


def test_damage_half_a_run_and_an_impossible_speed_up_are_named(room):
    logs = room / "two-cores"
    text = (logs / "ranks_2.jsonl").read_text()
    (logs / "ranks_2.jsonl").write_text(text.replace('"epoch": 1', '"epoch": ', 1))
    (logs / "ranks_4.jsonl").write_text("\n".join((logs / "ranks_4.jsonl").read_text().splitlines()[:-1]) + "\n")
    _, refused = board.read(room)
    why = {f"{path.parent.name}/{path.name}": reason for path, _, reason in refused}
    assert set(why) == {"two-cores/ranks_2.jsonl", "two-cores/ranks_4.jsonl"}
    assert "damaged" in why["two-cores/ranks_2.jsonl"] and "unfinished" in why["two-cores/ranks_4.jsonl"]

    def faster(record):
        for name in record if record["kind"] == "epoch" else []:
            record[name] *= {"s": 1 / 20, "d": 20}.get(name[-1], 1) if name.endswith(("seconds", "second")) else 1

    changed(logs / "ranks_8.jsonl", faster)
    table, refused = board.speedups(board.read(room)[0])
    why = {path.name: reason for path, machine, reason in refused if machine == "machine 2"}
    assert "not believed" in why["ranks_8.jsonl"] and 8 not in set(table.ranks)


def test_one_process_and_torchrun_make_a_line_though_their_threads_differ(room, tmp_path, capsys, monkeypatch):
    """As README's two commands; and of each other log it is said why it is not on the line."""
    logs = room / "two-cores"
    changed(logs / "ranks_1.jsonl", every("run", threads=2))
    shutil.copy(logs / "ranks_2.jsonl", logs / "ranks_1b.jsonl")
    changed(logs / "ranks_1b.jsonl", lambda record: record.update(run_id="b"))
    others = {"8": ({"world_size": 1, "strategy": "dp"}, "DataParallel True, not False"),
              "4": ({"world_size": 2, "channels_last": False}, "channels_last False, not True"),
              "1b": ({}, "another run with world size 2 counts")}
    for name, (values, _) in others.items():
        changed(logs / f"ranks_{name}.jsonl", every("run", **values))
    (room / "one-core" / "ranks_1.jsonl").unlink()
    assert main(monkeypatch, room, "--out", tmp_path) == 0
    printed, page = capsys.readouterr().out, (tmp_path / "index.html").read_text()
    assert re.search(r"machine 2: .*: 1: 1.00 \(2 threads each\), 2: 1.\d\d \(1 thread each\)\n", printed), printed
    for name, (_, why) in others.items():
        assert f"two-cores/ranks_{name}.jsonl (machine 2): {why}\n" in printed
    assert f"machine 1: {board.NO_LINE} (2 logs)" in page and "jsonl" not in page


def test_in_a_room_of_many_machines_few_have_labels_and_none_covers_another(room):
    """30 copies of two, SYNTHETIC, to see how many lines can be told apart."""
    table, _ = board.speedups(board.read(room)[0])
    copies = [table.assign(label=table.label + f" {number}", speedup=table.speedup * (1 + number / 100),
                           named=number == 3) for number in range(15)]
    ax = board.plot_speedups(pd.concat(copies), plt.subplots(figsize=(14, 8))[1], "Speed-up")
    labels = [text.get_text() for text in ax.texts]
    assert len(labels) == len(set(labels)) == 5 and "median" in " ".join(labels)
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(box.overlaps(other) for place, box in enumerate(boxes) for other in boxes[:place])


def test_the_winner_s_command_is_repeated(room, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(board, "GOAL", 0.0)
    shutil.rmtree(room / "two-cores")
    log = room / "one-core" / "race.jsonl"
    changed(log, every("run", samples=640, epochs=1))
    assert main(monkeypatch, room, "--out", tmp_path / "out", "--rerun") == 0
    printed = capsys.readouterr().out
    assert "repeating machine" in printed and "times as long" in printed, printed
    assert "--samples 640" in printed and str(log) not in printed.partition("repeating")[2].splitlines()[0]


def test_a_log_gives_no_command_but_main_py_s_own(tmp_path):
    record = {"world_size": 2, "threads": 1, "device": "cpu", "model": "lenet", "batch_size": 32, "save_model": "/x",
              "checkpoint": "/y", "data_path": "/z", "dist_url": "tcp://elsewhere:1"}
    command, _ = board.command_of(record, tmp_path / "log.jsonl")
    assert command[-1] == str(tmp_path / "log.jsonl") and not {"/x", "/y", "/z", "tcp://elsewhere:1"} & set(command)
    for name, value in (("threads", None), ("device", None), ("lr_scale", "x")):
        with pytest.raises(ValueError, match=f"does not say {name}"):
            board.command_of({**record, name: value}, tmp_path / "log.jsonl")
    with pytest.raises(ValueError, match="a value with @"):
        board.command_of({**record, "model": "@/handed-in/options"}, tmp_path / "log.jsonl")
    with pytest.raises(ValueError, match="at most"):
        board.command_of({**record, "world_size": 5000}, tmp_path / "log.jsonl")
    with pytest.raises(SystemExit):
        board.command_of({**record, "model": "; rm -rf /"}, tmp_path / "log.jsonl")


@pytest.mark.parametrize("scaling", ["none", "linear", "sqrt"])
@pytest.mark.parametrize("batches", [["--batch-size", "48"], ["--batch-size", "48", "--global-batch-size", "1000"]])
def test_the_command_of_a_log_has_its_learning_rate_and_batch(scaling, batches, tmp_path, monkeypatch):
    for name, value in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 2), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    warm_up = ["--warmup-epochs", "2"] if scaling != "none" else []
    typed = options.get_parser().parse_args([*batches, "--lr-scaling", scaling, *warm_up, "--device", "cpu"])
    options.resolve(typed)
    command, _ = board.command_of({**vars(typed), "world_size": 2, "threads": 1}, tmp_path / "log.jsonl")
    again = options.get_parser().parse_args(command[command.index("main.py") + 1:])
    options.resolve(again)
    for name in ("batch_size", "global_batch_size", "lr", "lr_scale", "warmup_epochs"):
        assert getattr(again, name) == getattr(typed, name), name


def test_watch_draws_again_when_a_result_comes_in(room, tmp_path, monkeypatch):
    shutil.move(room / "two-cores", tmp_path / "late")
    pages, page = [], tmp_path / "out" / "index.html"

    def sleep(seconds):
        pages.append(page.read_text())
        if len(pages) == 2:
            raise KeyboardInterrupt
        shutil.move(tmp_path / "late", room / "two-cores")

    monkeypatch.setattr(board.time, "sleep", sleep)
    with pytest.raises(SystemExit) as end:
        main(monkeypatch, room, "--out", tmp_path / "out", "--watch", "0.5")
    assert end.value.code == 130 and ["machine 2" in text for text in pages] == [False, True]
    assert all('http-equiv="refresh"' in text for text in pages)
