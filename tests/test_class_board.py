"""scripts/class_board: machines, not people; only what a log can be; redrawn, and the winner repeated."""

import json
import re
import runpy
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest

import options
from course.lesson import ROOT
from teach import board, handed_in
from teach import board_plots as classroom
from tests import runner

EXAMPLE = ROOT / "results" / "recorded" / "example-class"


@pytest.fixture
def room(tmp_path):
    """Two machines, handed in."""
    for name in ("two-cores", "one-core"):
        shutil.copytree(EXAMPLE / name, tmp_path / "in" / name)
    return tmp_path / "in"


def changed(path, change):
    """Write the log with records changed, and their checksums right, as a cheat would."""
    lines = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        record.pop("crc")
        change(record)
        text = json.dumps(record)
        lines.append(f'{text[:-1]}, "crc": {zlib.crc32(text[:-1].encode())}}}')
    path.write_text("\n".join(lines) + "\n")


def main(*arguments):
    script = runpy.run_path(str(ROOT / "scripts" / "draw_class_board.py"))
    sys.argv = ["class_board", *map(str, arguments)]
    return script["main"]()


def test_the_example_class_is_drawn(tmp_path, capsys):
    assert main(EXAMPLE, "--out", tmp_path) == 0
    said = capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "board.csv", "board.png", "index.html", "race.csv", "race.png"]
    assert [f"machine {number}" in said for number in range(1, 7)] == [True] * 5 + [False]
    assert "the race: machine" in said and "left out" not in said
    page = (tmp_path / "index.html").read_text()
    assert not any(folder.name in page for folder in EXAMPLE.iterdir() if folder.is_dir()), "no folder's name"
    assert 'alt="' in page and "refresh" not in page


def test_speed_ups_are_those_of_the_logs(room):
    told, refused = board.read(room)
    table, more = board.speedups(told)
    assert refused == [] and more == [] and list(table.label.unique()) == ["machine 1", "machine 2"]
    for _, rows in table.groupby("label"):
        assert rows.speedup.iloc[0] == 1 and rows.ranks.is_monotonic_increasing
    epochs = [json.loads(line) for line in (room / "two-cores" / "ranks_2.jsonl").read_text().splitlines()][1:-1]
    alone = [json.loads(line) for line in (room / "two-cores" / "ranks_1.jsonl").read_text().splitlines()][1:-1]
    median = [sorted(one["images_per_second"] for one in run[1:]) for run in (epochs, alone)]
    expected = sum(median[0]) / sum(median[1])  # of two epochs after the first, the median is the mean
    assert table[(table.label == "machine 2") & (table.ranks == 2)].speedup.item() == pytest.approx(expected)


def test_a_name_stands_there_only_where_a_learner_wrote_one(room):
    (room / "one-core" / "name.txt").write_text("Ada\x1b[31m Lovelace" + "x" * 100 + "\nsecond line\n")
    table, _ = board.speedups(board.read(room)[0])
    assert list(table.label.unique()) == ["Ada[31m Lovelace" + "x" * 24, "machine 2"]
    (room / "two-cores" / "name.txt").symlink_to("/etc/hostname")
    assert "machine 2" in set(board.speedups(board.read(room)[0])[0].label)


def test_no_folder_s_name_is_on_the_page_though_files_are_left_out(room, tmp_path, capsys):
    for path in (room / "two-cores").glob("*.jsonl"):
        (path.with_name(f"not-{path.name}")).write_text("nothing\n")
    shutil.copy(room / "two-cores" / "ranks_4.jsonl", room / "one-core" / "copied.jsonl")
    (room / "linked").symlink_to("two-cores")
    (room / "locked.ipynb").write_text('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{}]}')
    assert main(room, "--out", tmp_path / "out") == 0
    said, page = capsys.readouterr().out, (tmp_path / "out" / "index.html").read_text()
    assert f"left out: linked: {handed_in.LINK}" in said and "left out: two-cores/not-ranks_1.jsonl: neither" in said
    assert "left out: machine 2: neither" in page and "left out: machine 1: run" in page
    assert not any(name in page for name in ("two-cores", "one-core", "linked", "locked", "jsonl"))


def test_two_of_one_name_are_two_machines_and_nobody_is_another_s(room, tmp_path):
    shutil.copytree(EXAMPLE / "two-threads", room / "zoe")
    for folder, name in (("one-core", "Kim"), ("two-cores", "Kim"), ("zoe", "machine 2")):
        (room / folder / "name.txt").write_text(name)
    told, _ = board.read(room)
    assert list(board.speedups(told)[0].label.unique()) == ["Kim", "Kim (2)", "machine 2 (2)"]
    assert {"Kim", "Kim (2)"} <= set(board.race(told).label)


@pytest.mark.parametrize("name", [r'"$\\foo$"', "5", "lesson.begin"])
def test_whatever_a_learner_signs_with_the_board_is_drawn(name, tmp_path):
    notebook = nbformat.read(ROOT / "notebooks" / "07_performance.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("board_name = None", f"board_name = {name}")
    nbformat.write(notebook, tmp_path / "in.ipynb")
    (tmp_path / "room" / "deep").mkdir(parents=True)
    (tmp_path / "in.ipynb").rename(tmp_path / "room" / "ada.ipynb")
    notebook.cells.append(nbformat.v4.new_code_cell("x = " + "1+" * 20_000 + "1"))
    nbformat.write(notebook, tmp_path / "room" / "deep" / "07.ipynb")
    assert main(tmp_path / "room", "--out", tmp_path / "out") == 0
    label = r"$\foo$" if "$" in name else "machine 1"
    assert f"{label}: 2 cores" in (tmp_path / "out" / "index.html").read_text()


def test_a_notebook_is_a_machine_too(tmp_path):
    notebook = nbformat.read(ROOT / "notebooks" / "07_performance.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("board_name = None", 'board_name = "Ben"')
    nbformat.write(notebook, tmp_path / "anything.ipynb")
    table, refused = board.speedups(board.read(tmp_path)[0])
    assert refused == [] and set(table.label) == {"Ben"} and list(table.ranks) == [1, 2, 4, 8]
    assert "2 cores, AMD EPYC" in table.machine[0]


LIES = {
    "an accuracy above 1": (lambda r: r.update(accuracy=1.2) if r["kind"] == "epoch" else None, "no epoch in it"),
    "an accuracy that no test set gives": (
        lambda r: r.update(val_accuracy=0.55512345) if r["kind"] == "epoch" else None, "no whole number"),
    "faster seconds": (lambda r: r.update(seconds=r["seconds"] / (2 + r["epoch"])) if r["kind"] == "epoch" else None,
                       "take longer than the epoch|do not fit"),
    "longer than the run": (lambda r: r.update(seconds=0.01) if r["kind"] == "end" else None, "than the whole run"),
    "from the future": (lambda r: r.update(time=r["time"] + 10**8), "future"),
    "synthetic": (lambda r: r.update(dataset="synthetic", synthetic=True) if r["kind"] == "run" else None, "synthetic"),
    "no time at all": (lambda r: r.update(seconds=0.0) if r["kind"] == "epoch" else None, "not above 0|longer"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_contradicts_itself_is_named_and_left_out(room, lie):
    change, said = LIES[lie]
    changed(room / "two-cores" / "ranks_2.jsonl", change)
    told, refused = board.read(room)
    assert [(path.name, machine) for path, machine, _ in refused] == [("ranks_2.jsonl", "machine 2")]
    assert re.search(said, refused[0][2]), refused
    assert len(told) and not told["file"].str.endswith("two-cores/ranks_2.jsonl").any()


def test_damage_half_a_run_and_a_copied_run_are_named(room):
    logs = room / "two-cores"
    text = (logs / "ranks_2.jsonl").read_text()
    (logs / "ranks_2.jsonl").write_text(text.replace('"epoch": 1', '"epoch": 7', 1))  # its checksum tells
    (logs / "ranks_4.jsonl").write_text("\n".join((logs / "ranks_4.jsonl").read_text().splitlines()[:-1]) + "\n")
    shutil.copy(logs / "ranks_8.jsonl", room / "one-core" / "mine.jsonl")
    (logs / "more.jsonl").write_text("nothing\n")
    _, refused = board.read(room)
    why = {f"{path.parent.name}/{path.name}": reason for path, _, reason in refused}
    assert set(why) == {"two-cores/ranks_2.jsonl", "two-cores/ranks_4.jsonl", "two-cores/ranks_8.jsonl",
                        "one-core/mine.jsonl", "two-cores/more.jsonl"}
    assert "damaged" in why["two-cores/ranks_2.jsonl"] and "unfinished" in why["two-cores/ranks_4.jsonl"]
    assert "handed in by 2 learners" in why["one-core/mine.jsonl"]


def test_a_speed_up_that_no_machine_has_is_not_believed(room):
    def faster(record):
        for name in record if record["kind"] == "epoch" else []:
            if name.endswith("seconds"):
                record[name] /= 20
        if record["kind"] == "epoch":
            record["images_per_second"] *= 20

    changed(room / "two-cores" / "ranks_8.jsonl", faster)
    table, refused = board.speedups(board.read(room)[0])
    assert len(refused) == 1 and "not believed" in refused[0][2] and 8 not in set(table.ranks)


def test_the_race_counts_training_until_the_goal(room):
    won = board.race(board.read(room)[0])
    for row in won.itertuples():
        epochs = [json.loads(line) for line in Path(row.file).read_text().splitlines() if '"kind": "epoch"' in line]
        first = next(one["epoch"] for one in epochs if one["val_accuracy"] >= board.GOAL)
        assert row.seconds == pytest.approx(sum(one["seconds"] for one in epochs if one["epoch"] <= first))
    assert len(won) == 2 and won.seconds.is_monotonic_increasing
    changed(Path(won.file[0]), lambda r: r.update(test_samples=500) if r["kind"] == "run" else None)
    assert len(board.race(board.read(room)[0])) == 1, "not all test images, or not their whole number"


@pytest.mark.parametrize("machines", [2, 30])
def test_a_room_of_few_and_of_many_machines(room, machines):
    """30: copies of two, SYNTHETIC, to see how many lines can be told apart."""
    table, _ = board.speedups(board.read(room)[0])
    copies = [table.assign(label=table.label + f" {number}", speedup=table.speedup * (1 + number / 100),
                           named=number == 3) for number in range(machines // 2)]
    ax = classroom.room(pd.concat(copies), board.median(pd.concat(copies)), plt.subplots(figsize=(14, 8))[1])
    labels = [text.get_text() for text in ax.texts]
    assert len(labels) == len(set(labels)) and len(labels) <= 7
    assert ("median" in " ".join(labels)) == (machines > 2)
    ax.figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])


def test_the_winner_s_command_is_repeated(room, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(board, "GOAL", 0.2)
    for path in room.rglob("*.jsonl"):
        path.unlink()
    log = room / "one-core" / "race.jsonl"
    done = runner.run(0, "--dataset", "cifar10", "--samples", "1280", "--epochs", "2", "--log-file", log)
    assert done.returncode == 0, done.stderr
    assert main(room, "--out", tmp_path / "out", "--rerun") == 0
    said = capsys.readouterr().out
    assert "repeating machine" in said and "times as long" in said, said
    assert "--samples 1280" in said and str(log) not in said.partition("repeating")[2].splitlines()[0]


def test_a_log_gives_no_command_but_main_py_s_own(tmp_path):
    command_of = runpy.run_path(str(ROOT / "scripts" / "draw_class_board.py"))["command_of"]
    record = {"world_size": 2, "threads": 1, "device": "cpu", "model": "lenet", "batch_size": 32, "save_model": "/x",
              "checkpoint": "/y", "data_path": "/z", "dist_url": "tcp://elsewhere:1"}
    command, _ = command_of(record, tmp_path / "log.jsonl")
    assert command[-1] == str(tmp_path / "log.jsonl") and not {"/x", "/y", "/z", "tcp://elsewhere:1"} & set(command)
    for name, value in (("threads", None), ("device", None), ("lr_scale", "x")):
        with pytest.raises(ValueError, match=f"does not say {name}"):
            command_of({**record, name: value}, tmp_path / "log.jsonl")
    with pytest.raises(ValueError, match="at most"):
        command_of({**record, "world_size": 5000}, tmp_path / "log.jsonl")
    with pytest.raises(SystemExit):
        command_of({**record, "model": "; rm -rf /"}, tmp_path / "log.jsonl")


@pytest.mark.parametrize("scaling", ["none", "linear", "sqrt"])
@pytest.mark.parametrize("batches", [["--batch-size", "48"], ["--batch-size", "48", "--global-batch-size", "1000"]])
def test_the_command_of_a_log_has_its_learning_rate_and_batch(scaling, batches, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    for name, value in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 2), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    warm_up = ["--warmup-epochs", "2"] if scaling != "none" else []
    told = options.get_parser().parse_args([*batches, "--lr-scaling", scaling, *warm_up, "--device", "cpu"])
    options.resolve(told)
    command_of = runpy.run_path(str(ROOT / "scripts" / "draw_class_board.py"))["command_of"]
    command, _ = command_of({**vars(told), "world_size": 2, "threads": 1}, tmp_path / "log.jsonl")
    again = options.get_parser().parse_args(command[command.index("main.py") + 1:])
    options.resolve(again)
    for name in ("batch_size", "global_batch_size", "lr", "lr_scale", "warmup_epochs"):
        assert getattr(again, name) == getattr(told, name), name


def test_watch_draws_again_when_a_result_comes_in(room, tmp_path):
    late = tmp_path / "late"
    shutil.move(room / "two-cores", late)
    process = subprocess.Popen([sys.executable, "teach/draw_class_board.py", room, "--out", tmp_path / "out",
                                "--watch", "0.5"], cwd=ROOT, env=runner.environment(PYTHONPATH=str(ROOT)),
                               stdout=subprocess.PIPE, text=True)
    page = tmp_path / "out" / "index.html"
    try:
        runner.wait_for(page.exists, "the first board", 60)
        assert "machine 2" not in page.read_text() and 'http-equiv="refresh"' in page.read_text()
        shutil.move(late, room / "two-cores")
        runner.wait_for(lambda: "machine 2" in page.read_text(), "the second machine", 60)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_a_file_that_goes_while_it_is_looked_at_is_none(room, monkeypatch):
    seen, stat = runpy.run_path(str(ROOT / "scripts" / "draw_class_board.py"))["seen"], Path.stat
    before = seen(room)

    def gone(path, **how):
        if path.name == "ranks_1.jsonl" and path.parent.name == "one-core":
            path.unlink(missing_ok=True)
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", gone)
    assert set(before) - set(seen(room)) == {room / "one-core" / "ranks_1.jsonl"}


@pytest.mark.parametrize(("arguments", "said"), [
    ([], "DIR"), (["no-such-folder"], "no folder"), (["README.md"], "no folder"), ([""], "empty"),
    ([".", "--watch", "-1"], "--watch"), ([".", "--watch", "1", "--rerun"], "one of the two"),
    (["tests", "--out", "tests/board"], "would count as handed in"),
    (["tests", "--out", "README.md"], "README.md (Not a directory): name another folder")])
def test_bad_input_is_one_line(arguments, said, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as end:
        main(*arguments)
    err = capsys.readouterr().err
    assert end.value.code == 2 and said in err and len(err.strip().splitlines()) == 1


def test_a_folder_without_logs_says_so(tmp_path, capsys):
    (tmp_path / "in" / "ada").mkdir(parents=True)
    (tmp_path / "in" / "ada" / "notes.txt").write_text("no log")
    assert main(tmp_path / "in", "--out", tmp_path / "out") == 1
    assert "nothing to draw" in capsys.readouterr().out
