"""The log reader: an unfinished log gives no wrong number, and is never read as a whole one."""

import json
import math
import sys
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from course import console, runs
from scripts import runs as runs_command

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "results/recorded/tutorial-one-gpu-vs-eight"


def run_record(**fields):
    return dict(kind="run", run_id="a1", dataset="cifar10", synthetic=False, samples=50000, model="lenet", epochs=3,
                batch_size=64, lr=0.001, strategy="ddp", device="cpu", world_size=2, local_world_size=2, nodes=1,
                cores=2, threads=1) | fields


def epoch_record(epoch, **fields):
    seconds = 10.25 + epoch / 8
    return dict(kind="epoch", run_id="a1", epoch=epoch, loss=1.64 - epoch / 16, accuracy=0.4 + epoch / 32,
                seconds=seconds, images_per_second=50000 / seconds, data_seconds=0.375, forward_seconds=3.5,
                backward_seconds=5.5, update_seconds=0.5, val_loss=1.41, val_accuracy=0.49) | fields


def end_record(**fields):
    return dict(kind="end", run_id="a1", status="completed", seconds=40.5) | fields


def whole_log(**fields):
    return [run_record(**fields), *(epoch_record(i) for i in range(3)), end_record()]


def as_text(records):
    return "".join(json.dumps(record) + "\n" for record in records)


RESTART = {"kind": "restart", "run_id": "a1", "restarts": 1, "epoch": 1, "step": 0, "world_size": 2}


@pytest.fixture
def write(tmp_path):
    def write(content, name="log.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    return write


@pytest.fixture
def read(write):
    return lambda content, name="log.jsonl": runs.read_run(write(content, name))


def run_with(write, label, world_size=1, seconds=10.0, **fields):
    """A log whose every epoch takes `seconds`, after a first one that takes 100 more."""
    samples = fields.get("samples", 50000)
    epochs = [epoch_record(i, seconds=s, images_per_second=samples / s if samples else None)
              for i, s in enumerate([seconds + 100, seconds, seconds])]
    end = [end_record()] if fields.pop("ended", True) else []
    record = run_record(**dict(world_size=world_size, local_world_size=world_size) | fields)
    return write(as_text([record, *epochs, *end]), f"{label}.jsonl")


# ---------------------------------------------------------------- JSON lines


def test_a_whole_log_is_read_whole(read):
    df = read(as_text(whole_log()), "eight.jsonl")
    for i in range(3):
        assert {name: df[name][i] for name in epoch_record(i) if name in df and name != "run_id"} == {
            name: value for name, value in epoch_record(i).items() if name not in ("kind", "run_id")}
    assert all((df[name] == value).all() for name, value in run_record().items() if name != "kind")
    of_run = df[["label", "source", "machine", "status", "note", "total_seconds"]].iloc[0]
    assert of_run.tolist() == ["eight", "live", "this machine", "completed", "", 40.5]


def test_a_log_without_end_is_unfinished(read):
    df = read(as_text(whole_log()[:3]))
    assert set(df["status"]) == {"unfinished"} and df["note"].iloc[0] == "no end record; 2 of 3 epochs"
    cut = read(as_text(whole_log()[:4])[:-9], "cut.jsonl")
    assert cut["note"].iloc[0] == "last line cut off; no end record; 2 of 3 epochs"


def test_what_was_not_written_is_missing_and_what_is_new_becomes_a_column(read):
    df = read(as_text([run_record(backend=None, buckets=25), epoch_record(0, val_loss=None, lr=0.0005),
                       {"kind": "epoch", "epoch": 1}]))
    assert df[["backend", "val_loss", "total_seconds"]].isna().all(axis=None)
    assert df["loss"].isna().tolist() == [False, True] and df["buckets"].tolist() == [25, 25]
    assert (df["lr"].iloc[0], df["epoch_lr"].iloc[0]) == (0.001, 0.0005), "a run's own, and that of an epoch"


def test_the_checksums_of_earlier_versions_are_no_columns(read):
    df = read(as_text([record | {"crc": 7} for record in whole_log()]))
    assert len(df) == 3 and set(df["status"]) == {"completed"} and "crc" not in df


def test_a_record_without_what_it_needs_is_a_damaged_line(read):
    log = whole_log()
    log[2:] = [{"kind": "epoch"}, {"kind": "epoch", "epoch": "1"}, {"kind": "end"}]
    df = read(as_text(log))
    assert df["epoch"].tolist() == [0] and df["status"].item() == "unfinished"
    assert df["note"].item() == "3 damaged lines; no end record; 1 of 3 epochs"


@pytest.mark.parametrize("log", [
    whole_log(epochs="ten"), whole_log(lr=[0.1]), whole_log(synthetic="yes"), whole_log(seed=2**64),
    [run_record(), RESTART | {"epochs": "ten", "world_size": [2]}], [run_record(), end_record(seconds="long")]])
def test_a_field_of_another_type_is_refused_and_named_with_the_file(write, log):
    path = write(as_text(log), "typed.jsonl")
    with pytest.raises(runs.RunError, match=r"^\S*typed.jsonl: cannot be read: its field \w+ is .*$"):
        runs.read_run(path)
    with pytest.warns(UserWarning, match="typed.jsonl"):
        assert len(runs.read_runs([path, write(as_text(whole_log()), "good.jsonl")])) == 3


def test_a_failed_run_says_why(read):
    df = read(as_text([*whole_log()[:2], end_record(status="failed", error="ValueError:\n no")]))
    assert df["status"].item() == "failed" and df["note"].item() == "ValueError: no; 1 of 3 epochs"


def test_a_run_without_epochs_is_not_lost(read):
    df = read(as_text([run_record()]))
    assert len(df) == 1 and df["epoch"].isna().all() and df["world_size"].item() == 2


def test_the_last_run_of_a_file_is_read(read):
    second = [run_record(run_id="b2", epochs=1), epoch_record(0, run_id="b2", loss=9.5), end_record(run_id="b2")]
    df = read(as_text([*whole_log(), *whole_log(), *second]))
    assert df["loss"].tolist() == [9.5] and df["note"].item() == "2 earlier runs in this file left out"


def test_a_run_glued_to_the_half_record_of_a_killed_one_is_read(read):
    df = read(as_text(whole_log()[:3])[:-20] + as_text(whole_log(lr=0.5)))
    assert df["epoch"].tolist() == [0, 1, 2] and (df["lr"] == 0.5).all()


@pytest.mark.parametrize(("size", "note"), [(4, "; world size changed: 2, 4"), (2, "")])
def test_a_restart_may_change_the_world_size(read, size, note):
    log = whole_log()
    log.insert(2, RESTART | {"world_size": size})
    df = read(as_text(log))
    assert set(df["restarts"]) == {1} and df["epoch"].tolist() == [0, 1, 2]
    assert df["note"].iloc[0] == f"went on from a checkpoint 1 time{note}"


def test_a_run_that_went_on_after_its_end_needs_another_end(read):
    log = whole_log()
    log[2:2] = [end_record(status="resumable"), RESTART]
    assert set(read(as_text(log))["status"]) == {"completed"}
    assert set(read(as_text(log[:-1]))["status"]) == {"unfinished"}


# ---------------------------------------------------------------- console text

BANNER = "WARNING:torch.distributed.run:\n*****\nSetting OMP_NUM_THREADS environment variable for each process\n*****\n"


def line(epoch, loss="1.64", more=""):
    return f"Epoch: {epoch}, Loss: {loss}, acc: 0.40, time cost: {10 + epoch}.25s{more}"


def test_main_s_console_is_read(read):
    first = line(0, more=", val loss: 1.41, val acc: 0.49, images/s: 506")
    df = read(f"cifar10 (SYNTHETIC: made from a seed)\n{first}\n{line(1, 'nan')}\n", "a.txt")
    columns = ["epoch", "loss", "accuracy", "seconds", "val_loss", "val_accuracy", "images_per_second"]
    assert df.loc[0, columns].tolist() == [0, 1.64, 0.40, 10.25, 1.41, 0.49, 506]
    assert math.isnan(df.loc[1, "loss"]) and df.loc[1, "note"] == "loss is not finite from epoch 1"
    assert set(df["status"]) == {"unknown"} and df["synthetic"].all() and df["world_size"].isna().all()


@pytest.mark.parametrize("text", [
    BANNER + "\n".join(map(line, range(3))) + "\n",
    "".join(f"0: [default0]: 2026-01-01 10:00:00,123 INFO main - {line(i)}\r\n" for i in range(3)),
    line(0) + line(1) + line(2) + "\n\n\n",
    " 10%|#  | 5/50\r 90%|## |\r" + line(0) + "\r" + line(1) + "\r\n" + line(2) + "\n",
    line(0) + "[W1120 12:00:00] some warning\n" + line(1) + "\n" + line(2),
], ids=["banner", "two prefixes", "glued", "progress bar", "warning"])
def test_console_text_as_launchers_write_it(read, text):
    df = read(text, "a.log")
    figures = df[["epoch", "loss", "accuracy", "seconds"]].to_numpy(dtype=float).tolist()
    assert figures == [[e, 1.64, 0.40, 10.25 + e] for e in range(3)] and df["note"].iloc[0] == ""


PREFIXES = ["[default{r}]:", "[host{r}]:", "[rank{r}]: ", "{r}: ", "[1,{r}]<stdout>:",
            "[prterun-n1-123@1,{r}]<stdout>: ", "[1,mpirank:{r},algo-1]<stdout>:", "[{r}] "]
NO_RANK = ["(RayTrainWorker pid=10{r}, ip=10.0.0.1) ", "\x1b[36m(RayTrainWorker pid=10{r})\x1b[0m ",
           "trainer-{r}  | "]


@pytest.mark.parametrize("stamp", ["", "2026-11-24T10:00:00.1234567Z ", "\x1b[36m"], ids=["", "stamped", "coloured"])
@pytest.mark.parametrize("prefix", PREFIXES + NO_RANK)
def test_rank_0s_figures_are_taken_or_it_is_said_that_ranks_cannot_be_told(prefix, stamp):
    """Rank 1 is the first to print each epoch."""
    notes = []
    text = "".join(f"{stamp}{prefix.format(r=rank)}{line(epoch, f'{rank + 1}.5')}\n"
                   for epoch in range(2) for rank in (1, 0))
    losses = [row["loss"] for row in console.read(text, notes)[1].values()]
    assert (losses, notes) == ([1.5, 1.5], []) if prefix in PREFIXES else "more than once" in notes[0]


def test_another_rank_s_console_says_so(read):
    assert read(f"[rank3]: {line(0)}\n", "a.txt")["note"].item() == "rank 0 is not in this file: rank 3 read instead"


@pytest.mark.parametrize(("end", "column"), [
    ("Epoch: 1, Loss: 1.6", "loss"),
    ("Epoch: 1, Loss: 1.64, acc: 0.40, time cost: 7.", "seconds"),
    ("Epoch: 1, Loss: 1.64, acc: 0.40, time cost: 7", "seconds"),
    ("Epoch: 1, Loss: 1.64, acc: 0.40, time cost: 7.25s, images/s: 50", "images_per_second"),
])
def test_a_cut_number_is_no_number(read, end, column):
    df = read(line(0) + "\n" + end, "a.txt")
    assert df.set_index("epoch")[column].reindex([1]).isna().all()
    assert set(df["status"]) == {"unfinished"} and df["note"].iloc[0] == "last line cut off"


@pytest.mark.parametrize(("epochs", "status", "note"), [(2, "completed", ""), (5, "unfinished", "2 of 5 epochs")])
def test_console_text_is_complete_only_against_its_header(read, epochs, status, note):
    df = read(f"# source: a book\n# epochs: {epochs}\n# cores: many\n{line(0)}\n{line(1)}\n", "a.txt")
    assert df.loc[0, ["status", "note"]].tolist() == [status, note] and df["cores"].isna().all()


# ---------------------------------------------------------------- many logs


def test_many_logs_make_one_table(write, tmp_path):
    for name in ("b.jsonl", "a.txt", "sub/c.log", "sub/b.jsonl"):
        write(as_text(whole_log()), name)
    write("text about the logs", "README.txt")
    folder = tmp_path.name
    for paths in (tmp_path, [tmp_path, tmp_path / "a.txt"]):
        assert set(runs.read_runs(paths)["label"]) == {"a", "c", f"{folder}/b", "sub/b"}, "told apart by their folder"
    assert set(runs.read_runs(str(tmp_path / "*.jsonl"))["label"]) == {"b"}
    df = runs.read_runs({"first": tmp_path / "b.jsonl", "again": tmp_path / "b.jsonl"})
    assert df.groupby("label", sort=False).size().to_dict() == {"first": 3, "again": 3}


def test_what_is_no_log_is_refused_in_one_line_and_does_not_lose_the_others(write, tmp_path):
    (tmp_path / "empty").mkdir()
    for content in ("", "hello\n", '{"a": 1}\n'):
        with pytest.raises(runs.RunError, match="^.*log.jsonl.*$"):
            runs.read_run(write(content))
    for paths in ([], {}, tmp_path / "empty", tmp_path / "none.jsonl", str(tmp_path / "*.none")):
        with pytest.raises(runs.RunError):
            runs.read_runs(paths)
    with pytest.warns(UserWarning, match="log.jsonl"):
        assert len(runs.read_runs([tmp_path / "log.jsonl", write(as_text(whole_log()), "good.jsonl")])) == 3


# ---------------------------------------------------------------- comparing


def test_seconds_per_epoch_leaves_the_warm_up_out(write):
    log = [run_record(epochs=4), *(epoch_record(i, seconds=s, images_per_second=v, loss=i) for i, s, v in
                                   [(0, 90.0, 1), (1, 4.0, 10), (2, 6.0, 30), (3, 5.0, 20)])]
    row = runs.seconds_per_epoch(runs.read_run(write(as_text(log)))).iloc[0]
    assert row[["epochs", "seconds", "images_per_second", "loss", "status"]].tolist() == [4, 5.0, 20, 3, "unfinished"]


def test_seconds_per_epoch_of_one_epoch_and_of_none(write):
    one = write(as_text([run_record(), epoch_record(0, seconds=8.0, images_per_second=None)]), "one.jsonl")
    table = runs.seconds_per_epoch(runs.read_runs([one, write(as_text([run_record()]), "none.jsonl")]))
    assert table["epochs"].tolist() == [1, 0] and table["images_per_second"].tolist()[0] == 50000 / 8
    assert table.loc[1, ["seconds", "images_per_second", "loss"]].isna().all()


def test_speed_up_and_efficiency(write):
    """DataParallel is neither a baseline nor one worker."""
    logs = [run_with(write, "one", 1, 12.0), run_with(write, "dp", 1, 8.0, strategy="dp"),
            run_with(write, "two", 2, 6.0), run_with(write, "eight", 8, 8.0, ended=False)]
    table = runs.speedup_table(runs.read_runs(logs)).set_index("label")
    assert table["speedup"].tolist() == [1, 1.5, 2, 1.5] and set(table["baseline"]) == {"one"}
    assert table["efficiency"].drop("dp").tolist() == [1, 1, 1.5 / 8] and pd.isna(table.loc["dp", "efficiency"])
    assert table["oversubscribed"].tolist() == [False, False, False, True]
    assert "this run unfinished: from 3 epochs" in table.loc["eight", "note"] and table.loc["two", "note"] == ""


def test_a_baseline_may_be_named(write):
    df = runs.read_runs([run_with(write, *run) for run in (("one", 1, 12.0), ("uno", 1, 6.0), ("two", 2, 6.0))])
    assert runs.speedup_table(df, baseline="one")["speedup"].tolist() == [1, 2, 2]
    for table, baseline, message in ((df, None, "several baselines"), (df, "three", "no run is called 'three'"),
                                     (df[df["label"] == "two"], None, "no timed run with world size 1")):
        with pytest.raises(runs.RunError, match=message):
            runs.speedup_table(table, baseline)


def test_live_and_recorded_runs_are_never_compared(write):
    live = [run_with(write, "one", 1, 12.0), run_with(write, "two", 2, 6.0)]
    recorded = [run_with(write, f"results/recorded/dgx/{n}", n, 4.0 / n) for n in (1, 4)]
    table = runs.speedup_table(runs.read_runs(live + recorded), baseline="one")
    assert table["speedup"].tolist() == [1, 2, 1, 4]
    assert table["baseline"].tolist() == ["one", "one", "1", "1"]
    with pytest.raises(runs.RunError, match="recorded runs on dgx: no timed run with world size 1"):
        runs.speedup_table(runs.read_runs(live + recorded[1:]))


@pytest.mark.parametrize(("fields", "speedup"), [
    ({"samples": 100000}, 2), ({"samples": None}, math.nan), ({"model": "resnet"}, math.nan)])
def test_unlike_runs_are_compared_by_images_a_second_or_not_at_all(write, fields, speedup):
    table = runs.speedup_table(runs.read_runs([run_with(write, "one"), run_with(write, "two", 2, **fields)]))
    assert table["speedup"].iloc[1] == pytest.approx(speedup, nan_ok=True)


@pytest.mark.parametrize(("fields", "expected"), [
    (dict(world_size=8, local_world_size=4, nodes=2, cores=4), False),
    (dict(world_size=8, local_world_size=None, nodes=2, cores=2), True),
    (dict(world_size=8, device="cuda"), None),
    (dict(world_size=8, cores=None), None),
])
def test_more_ranks_than_cores(write, fields, expected):
    logs = [run_with(write, "one", 1), run_with(write, "many", **fields)]
    oversubscribed = runs.speedup_table(runs.read_runs(logs))["oversubscribed"].iloc[1]
    assert oversubscribed is pd.NA if expected is None else oversubscribed == expected


# ---------------------------------------------------------------- the recorded runs, and the command


def test_the_recorded_tutorial_runs():
    df = runs.read_runs(RECORDED)
    assert set(df["source"]) == {"recorded"} and set(df["machine"]) == {"tutorial-one-gpu-vs-eight"}
    one, eight = df[df["label"] == "one_gpu"], df[df["label"] == "eight_gpus"]
    assert one["seconds"].tolist() == [33.72, 33.75, 33.04, 23.91, 20.76, 41.05, 20.00, 24.13, 32.31, 33.40]
    assert eight["seconds"].tolist() == [7.88, 6.71, 7.13, 6.65, 7.14, 6.93, 7.20]
    assert eight["loss"].tolist() == [2.20, 2.11, 2.05, 2.02, 1.99, 1.98, 1.96]
    assert eight["accuracy"].tolist() == [0.03, 0.04, 0.05, 0.05, 0.06, 0.06, 0.06]
    assert (set(one["world_size"]), set(one["status"]), set(one["note"])) == ({1}, {"completed"}, {""})
    assert (set(eight["world_size"]), set(eight["status"])) == ({8}, {"unfinished"})
    assert set(eight["note"]) == {"last line cut off; 7 of 10 epochs"}
    assert runs.speedup_table(df).set_index("label").loc["eight_gpus", "speedup"] == pytest.approx(32.31 / 7.03)


@pytest.fixture
def command(monkeypatch, capsys):
    """command(*arguments) -> (exit status, stdout, stderr) of scripts/runs.py."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main() replaces it

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["runs.py", *map(str, arguments)])
        try:
            runs_command.main()
            status = 0
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return call


def test_the_command_prints_the_table_and_writes_files(write, command, tmp_path):
    logs = [run_with(write, "one", 1, 12.0), run_with(write, "eight", 8, 6.0, ended=False)]
    bad, new = write("hello", "bad.jsonl"), tmp_path / "new"
    status, out, err = command(*logs, bad, "--csv", new / "table.csv", "--plots", new)
    assert status == 0 and err.startswith(f"runs.py: left out: {bad}: ")
    rows = [text.split() for text in out.splitlines()]
    assert ["one", "live", "cifar10", "1", "1", "3", "12.00", "4,167", "1.00", "100%", "completed"] in rows
    assert "eight: more ranks than cores (2); no end record; this run unfinished: from 3 epochs" in out
    assert pd.read_csv(new / "table.csv")["speedup"].tolist() == [1, 2]
    pictures = {path for path in out.splitlines() if path.endswith(".png")}
    assert {str(new / f"{name}.png") for name in ("loss_by_epoch", "phases", "throughput", "speedup")} <= pictures
    assert set(map(str, new.iterdir())) == {*pictures, str(new / "table.csv")} and not plt.get_fignums()


@pytest.mark.parametrize("arguments", [["none.jsonl"], [RECORDED, "--baseline", "x"], [RECORDED / "eight_gpus.txt"]])
def test_bad_input_gives_one_line_and_status_2(arguments, command, tmp_path):
    status, out, err = command(*arguments, "--csv", tmp_path / "t.csv")
    assert (status, out, err.count("\n")) == (2, "", 1) and err.startswith("runs.py: ")
    assert not list(tmp_path.iterdir())
