"""The log reader: a damaged or unfinished log gives no wrong number, and is never read as a whole one."""

import json
import math
import os
import re
import sys
import warnings
import zlib
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course import console, runs
from scripts import runs as runs_command

ROOT = Path(__file__).resolve().parents[1]
RECORDED = ROOT / "results/recorded/tutorial-one-gpu-vs-eight"
MEASURES = ["loss", "accuracy", "seconds", "images_per_second", "data_seconds", "val_loss", "val_accuracy"]


def run_record(**fields):
    defaults = dict(
        kind="run", time=1.8e9, run_id="a1", started="2026-01-01T00:00:00+00:00", dataset="cifar10", synthetic=False,
        samples=50000, test_samples=10000, model="lenet", epochs=3, batch_size=64, lr=0.001, seed=0, strategy="ddp",
        device="cpu", device_name="cpu", device_count=0, backend="gloo", world_size=2, local_world_size=2, nodes=1,
        cores=2, threads=1, launcher="torchrun", host="Linux x86_64", torch="2.15.0", python="3.11.7", shuffle=True,
        sync_bn=False,
    )  # fmt: skip
    return defaults | fields


def epoch_record(epoch, **fields):
    seconds = 10.25 + epoch / 8
    defaults = dict(
        kind="epoch", time=1.8e9, run_id="a1", epoch=epoch, loss=1.6401 - epoch / 16, accuracy=0.40125 + epoch / 32,
        seconds=seconds, images_per_second=50000 / seconds, data_seconds=0.375, forward_seconds=3.5,
        backward_seconds=5.5, update_seconds=0.5, val_loss=1.41, val_accuracy=0.49,
    )  # fmt: skip
    return defaults | fields


def end_record(**fields):
    return dict(kind="end", time=1.8e9, run_id="a1", status="completed", seconds=40.5, peak_memory_bytes=512) | fields


def whole_log(**fields):
    return [run_record(**fields), *(epoch_record(i) for i in range(3)), end_record()]


def as_text(records):
    """The records as run_log.py writes them."""
    texts = [json.dumps(record)[:-1] for record in records]
    return "".join(f'{text}, "crc": {zlib.crc32(text.encode())}}}\n' for text in texts)


@pytest.fixture
def write(tmp_path):
    def write(content, name="log.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def read(write):
    return lambda content, name="log.jsonl": runs.read_run(write(content, name))


def run_with(write, label, world_size=1, seconds=10.0, **fields):
    """A log whose every epoch takes `seconds`, after a first one that takes 100 more."""
    samples = fields.get("samples", 50000)
    epochs = [
        epoch_record(i, seconds=s, images_per_second=samples / s if samples else None)
        for i, s in enumerate([seconds + 100, seconds, seconds])
    ]
    fields = dict(world_size=world_size, local_world_size=world_size) | fields
    end = [end_record()] if fields.pop("ended", True) else []
    return write(as_text([run_record(**fields), *epochs, *end]), f"{label}.jsonl")


# ---------------------------------------------------------------- JSON lines


def test_a_whole_log_is_read_whole(read):
    df = read(as_text(whole_log()), "eight.jsonl")
    assert df["epoch"].tolist() == [0, 1, 2]
    for name in [*MEASURES, "forward_seconds", "backward_seconds", "update_seconds"]:
        assert df[name].tolist() == [epoch_record(i)[name] for i in range(3)], name
    for name, value in run_record().items():
        if name not in ("kind", "time"):
            assert (df[name] == value).all(), name
    of_run = df[["label", "source", "machine", "status", "note", "total_seconds", "peak_memory_bytes"]].iloc[0]
    assert of_run.tolist() == ["eight", "live", "this machine", "completed", "", 40.5, 512]
    assert df["error"].isna().all()


def test_a_log_without_end_is_unfinished(read):
    df = read(as_text(whole_log()[:3]))
    assert set(df["status"]) == {"unfinished"}
    assert df["note"].iloc[0] == "no end record; 2 of 3 epochs"
    cut = read(as_text(whole_log()[:4])[:-9], "cut.jsonl")
    assert cut["note"].iloc[0] == "last line cut off; no end record; 2 of 3 epochs"


def test_what_was_not_written_is_missing_and_what_is_new_becomes_a_column(read):
    df = read(as_text([run_record(backend=None, buckets=25), epoch_record(0, val_loss=None, lr=0.0005),
                       {"kind": "epoch", "epoch": 1}]))
    assert df[["backend", "val_loss", "total_seconds"]].isna().all(axis=None)
    assert df["loss"].isna().tolist() == [False, True] and df["buckets"].tolist() == [25, 25]
    assert (df["lr"].iloc[0], df["epoch_lr"].iloc[0]) == (0.001, 0.0005), "a run's own, and that of an epoch"


def test_a_log_of_earlier_versions_has_no_checksums(read):
    df = read("".join(json.dumps(record) + "\n" for record in whole_log()))
    assert len(df) == 3 and set(df["status"]) == {"completed"} and set(df["note"]) == {""}


def test_a_log_that_an_editor_of_windows_has_saved_is_read_whole(read):
    df = read(as_text(whole_log()).replace("\n", "\r\n").encode("utf-8-sig"))
    assert len(df) == 3 and set(df["note"]) == {""}


def test_a_failed_run_says_why(read):
    df = read(as_text([*whole_log()[:2], end_record(status="failed", error="ValueError:\n no")]))
    assert set(df["status"]) == {"failed"} and df["error"].item() == "ValueError:\n no"
    assert df["note"].item() == "ValueError: no; 1 of 3 epochs"


def test_a_run_without_epochs_is_not_lost(read):
    df = read(as_text([run_record()]))
    assert len(df) == 1 and df["epoch"].isna().all() and df["loss"].isna().all()
    assert df["world_size"].item() == 2 and "no epoch" in df["note"].item()


def test_the_last_run_of_a_file_is_read(read):
    second = [
        run_record(run_id="b2", epochs=1),
        epoch_record(0, run_id="b2", loss=9.5),
        end_record(run_id="b2"),
    ]
    df = read(as_text([*whole_log(), *whole_log(), *second]))
    assert df["loss"].tolist() == [9.5] and df["run_id"].item() == "b2"
    assert df["note"].item() == "2 earlier runs in this file left out"


def test_records_of_another_run_are_left_out(read):
    log = whole_log()
    log.insert(2, epoch_record(1, run_id="other", loss=77.0))
    log.append(end_record(run_id="other", status="failed"))
    df = read(as_text(log))
    assert df["loss"].tolist() == [epoch_record(i)["loss"] for i in range(3)]
    assert set(df["status"]) == {"completed"}
    assert df["note"].iloc[0] == "left out 2 records of another run"


def test_without_its_run_record_a_run_is_still_read(read):
    df = read(as_text([epoch_record(0, run_id="old", loss=3.5), *whole_log()[1:]]))
    assert df["epoch"].tolist() == [0, 1, 2] and 3.5 not in df["loss"].tolist()
    assert df["world_size"].isna().all() and "no run record" in df["note"].iloc[0]


@pytest.mark.parametrize(("size", "note"), [(4, "; world size changed: 2, 4"), (2, "")])
def test_a_restart_may_change_the_world_size(read, size, note):
    log = whole_log()
    log.insert(2, {"kind": "restart", "run_id": "a1", "restarts": 1, "epoch": 1, "step": 0, "world_size": size})
    df = read(as_text(log))
    assert set(df["restarts"]) == {1} and df["epoch"].tolist() == [0, 1, 2]
    assert df["note"].iloc[0] == f"went on from a checkpoint 1 time{note}"


def test_a_run_that_went_on_after_its_end_needs_another_end(read):
    log = whole_log()
    log.insert(2, end_record(status="resumable"))
    log.insert(3, {"kind": "restart", "run_id": "a1", "restarts": 1, "epoch": 1, "step": 0, "world_size": 2})
    assert set(read(as_text(log))["status"]) == {"completed"}
    assert set(read(as_text(log[:-1]))["status"]) == {"unfinished"}


@pytest.mark.parametrize(("old", "new", "epochs", "status"), [
    ('"accuracy": 0.4325', '"accuracy": 0.9325', [0, 2], "completed"),
    ('"seconds": 40.5', '"seconds": 10.5', [0, 1, 2], "unfinished"),
])
def test_a_changed_digit_is_damage(read, old, new, epochs, status):
    log = as_text(whole_log())
    assert set(read(log)["note"]) == {""} and log.count(old) == 1
    df = read(log.replace(old, new))
    assert df["epoch"].tolist() == epochs and set(df["status"]) == {status}
    assert "1 damaged line" in df["note"].iloc[0]


def test_a_run_glued_to_the_half_record_of_a_killed_one_is_read(read):
    killed = as_text(whole_log()[:3])[:-20]
    df = read(killed + as_text(whole_log(run_id="a1", lr=0.5)))
    assert df["epoch"].tolist() == [0, 1, 2] and (df["lr"] == 0.5).all()
    assert "damaged line" in df["note"].iloc[0] and "earlier run" in df["note"].iloc[0]


def test_a_repeated_epoch_counts_once(read):
    df = read(as_text([*whole_log()[:-1], epoch_record(1, loss=5.5), end_record()]))
    assert df["loss"].tolist() == [epoch_record(i)["loss"] for i in range(3)]
    assert df["note"].iloc[0] == "left out 1 record repeating an epoch"


@pytest.mark.parametrize("garbage", [
    b"\xff\xfe\0 binary\n", b'{"kind": "epoch"\n', b"Epoch: 1, Loss: 9.99, acc: 0.99, time cost: 9.99s\n"])
def test_a_foreign_line_harms_nothing_else(read, garbage):
    lines = as_text(whole_log()).encode().splitlines(keepends=True)
    df = read(b"".join([*lines[:2], garbage, *lines[2:]]))
    assert df["loss"].tolist() == [epoch_record(i)["loss"] for i in range(3)]
    assert df["note"].iloc[0] == "1 damaged line (3)"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_diverged_loss_is_read_as_such(read, loss):
    console = read(f"{line(0, loss)}\n", "a.txt")
    assert str(console["loss"].item()) == str(loss)
    assert console["note"].item() == "loss is not finite from epoch 0"
    log = whole_log()
    log[2] = epoch_record(1, loss=loss)
    df = read(as_text(log))
    assert str(df["loss"].iloc[1]) == str(loss) and df["seconds"].notna().all()
    assert df["note"].iloc[0] == "loss is not finite from epoch 1"


# ---------------------------------------------------------------- console text

BANNER = "WARNING:torch.distributed.run:\n*****\nSetting OMP_NUM_THREADS environment variable for each process\n*****\n"


def line(epoch, loss="1.64", more=""):
    return f"Epoch: {epoch}, Loss: {loss}, acc: 0.40, time cost: {10 + epoch}.25s{more}"


def full_line(epoch):
    return line(epoch, more=", val loss: 1.41, val acc: 0.49, images/s: 5066")


def test_console_text_is_read_by_field_name(read):
    df = read(
        full_line(0) + "\nEpoch: 1, time cost: 2.5s, lr: 0.1, images/s: 7000, acc: 0.5, Loss: 1.25, x: 1\n",
        "a.txt",
    )
    expected = [[0, 1.64, 0.40, 10.25, 1.41, 0.49, 5066], [1, 1.25, 0.5, 2.5, math.nan, math.nan, 7000]]
    columns = ["epoch", "loss", "accuracy", "seconds", "val_loss", "val_accuracy", "images_per_second"]
    np.testing.assert_equal(df[columns].to_numpy(dtype=float), np.array(expected))
    assert set(df["status"]) == {"unknown"} and df["note"].iloc[0] == ""
    assert df[["world_size", "synthetic", "samples"]].isna().all(axis=None)


@pytest.mark.parametrize(
    "text",
    [
        BANNER + "\n".join(map(line, range(3))) + "\n",
        "".join(f"[rank0]:{line(i)}\n[rank0]: {line(i)}\n" for i in range(3)),
        "".join(f"0: [default0]: 2026-01-01 10:00:00,123 INFO main - {line(i)}\r\n" for i in range(3)),
        line(0) + line(1) + line(2) + "\n\n\n",
        " 10%|#  | 5/50\r 90%|## |\r" + line(0) + "\r" + line(1) + "\r\n" + line(2) + "\n",
        line(0) + "[W1120 12:00:00] some warning\n" + line(1) + "\n" + line(2),
    ],
)  # fmt: skip
def test_console_text_as_launchers_write_it(read, text):
    df = read(text, "a.log")
    figures = df[["epoch", "loss", "accuracy", "seconds"]].to_numpy(dtype=float).tolist()
    assert figures == [[e, 1.64, 0.40, 10.25 + e] for e in range(3)] and df["note"].iloc[0] == ""


def test_other_ranks_lines_are_not_rank_0s(read):
    text = "".join(f"[rank{r}]: {line(e, loss=f'{r}.5')}\n" for e in range(2) for r in (3, 0, 1))
    df = read(text, "a.txt")
    assert df["loss"].tolist() == [0.5, 0.5] and df["note"].iloc[0] == ""
    df = read("[rank3]: " + line(0) + "\n", "c.txt")
    assert df["note"].iloc[0] == "rank 0 is not in this file: rank 3 read instead"


PREFIXES = ["[default{r}]:", "[host{r}]:", "[1,{r}]<stdout>:", "[prterun-n1-123@1,{r}]<stdout>: ", "[{r}] ",
            "[1,mpirank:{r},algo-1]<stdout>:", "{r}: ", "job-ft3/{r} ", "[pod/train-worker-{r}/pytorch] ",
            "trainer-{r}  | "]
RAY = ["(RayTrainWorker pid=10{r}, ip=10.0.0.1) ", "\x1b[36m(RayTrainWorker pid=10{r})\x1b[0m "]


def read_prefixed(prefix, stamp):
    """(losses of the epochs, notes) of a console on which rank 1 was the first to print each epoch."""
    notes = []
    lines = [f"{stamp}{prefix.format(r=rank)}Epoch: {epoch}, Loss: {rank + 1}.5, acc: 0.32, time cost: 33.72s\n"
             for epoch in range(2) for rank in (1, 0)]
    return [row["loss"] for row in console.read("".join(lines), notes)[1].values()], notes


@pytest.mark.parametrize("stamp", ["", "2026-11-24T10:00:00.1234567Z "], ids=["", "stamped"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_rank_0s_figures_are_taken(prefix, stamp):
    assert read_prefixed(prefix, stamp) == ([1.5, 1.5], [])


@pytest.mark.parametrize("prefix", RAY)
def test_a_prefix_without_a_rank_is_said(prefix):
    assert any("does not say which rank" in note for note in read_prefixed(prefix, "")[1])


def test_ranks_that_do_not_say_who_they_are(read):
    df = read(f"{line(0, '1.5')}\n{line(0, '2.5')}\n{line(1)}\n{line(1)}\n", "a.txt")
    assert df["loss"].tolist() == [1.5, 1.64]
    assert df["note"].iloc[0] == "1 epoch printed more than once with other values: first kept"


@pytest.mark.parametrize(
    ("end", "column"),
    [
        ("Epoch: 1, Loss: 1.6", "loss"),
        ("Epoch: 1, Loss: 1.64, acc: 0.40, time cost: 7.", "seconds"),
        ("Epoch: 1, Loss: 1.64, acc: 0.40, time cost: 7", "seconds"),
        ("Epoch: 1, Loss: 1.64, acc: 0.40, time cost: 7.25s, images/s: 50", "images_per_second"),
    ],
)
def test_a_cut_number_is_no_number(read, end, column):
    df = read(line(0) + "\n" + end, "a.txt")
    last = df.set_index("epoch")[column].reindex([1])
    assert last.isna().all()
    assert set(df["status"]) == {"unfinished"} and df["note"].iloc[0] == "last line cut off"


def test_the_header_of_a_text_file_says_what_it_is(read):
    head = "# source: a book\n# world_size: 8\n# synthetic: false\n# lr: 0.5\n# Batch size: 64\n"
    df = read(head + "# cores: many\n# colour: red\n" + line(0) + "\n# world_size: 3\n", "a.txt")
    row = df.iloc[0]
    assert [row[k] for k in ("origin", "world_size", "synthetic", "lr", "batch_size", "source")] == [
        "a book", 8, False, 0.5, 64, "live",
    ]  # fmt: skip
    assert df["cores"].isna().all()
    assert row["note"] == "header left out: cores: many; header left out: colour: red"


@pytest.mark.parametrize(("epochs", "status", "note"), [(2, "completed", ""), (5, "unfinished", "2 of 5 epochs")])
def test_console_text_is_complete_only_against_its_header(read, epochs, status, note):
    df = read(f"# epochs: {epochs}\nsynthetic (SYNTHETIC: made from a seed)\n{line(0)}\n{line(1)}\n", "a.txt")
    assert (df["status"].iloc[0], df["note"].iloc[0]) == (status, note) and df["synthetic"].all()


def test_what_is_no_log_is_refused_in_one_line(write, tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "empty").mkdir()
    for content in (b"", b" \n\n", b"hello\n", b"{", b'{"a": 1}\n', bytes(range(256))):
        with pytest.raises(runs.RunError, match="^.*log.jsonl.*$"):
            runs.read_run(write(content))
    for path in (tmp_path / "none.jsonl", tmp_path / "pipe.jsonl", "a\0b", "x" * 5000):
        with pytest.raises(runs.RunError):
            runs.read_run(path)
    for paths in ([], {}, tmp_path / "empty", str(tmp_path / "*.none"), [write("hello")]):
        with pytest.raises(runs.RunError):
            runs.read_runs(paths)


# ---------------------------------------------------------------- cut, torn and flipped


def assert_only_true_numbers(df, truth):
    """Every number of `df` is the one that was written for its epoch, or is missing."""
    for row in df.to_dict("records"):
        if pd.isna(row["epoch"]):
            continue
        for name, value in truth[row["epoch"]].items():
            assert math.isnan(row[name]) or row[name] == value, (row["epoch"], name, row[name], value)
    assert df["world_size"].isna().all() or set(df["world_size"]) == {12}


JSON_LOG = as_text([*whole_log(world_size=12, epochs=2)[:3], end_record()]).encode()
JSON_TRUTH = {i: {name: epoch_record(i)[name] for name in MEASURES} for i in range(2)}
CONSOLE_LOG = (
    "# batch_size: 64\n# world_size: 12\n# epochs: 4\n"
    + BANNER
    + "".join(full_line(e) + ("\n" if e % 3 else "") for e in range(4))
    + "\n"
).encode()
CONSOLE_TRUTH = {
    e: dict(loss=1.64, accuracy=0.40, seconds=10.25 + e, val_loss=1.41, val_accuracy=0.49, images_per_second=5066)
    for e in range(4)
}
LOGS = pytest.mark.parametrize(
    ("log", "truth"), [(JSON_LOG, JSON_TRUTH), (CONSOLE_LOG, CONSOLE_TRUTH)], ids=["json", "console"]
)
FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def read_or_none(path, content):
    path.write_bytes(content)
    try:
        return runs.read_run(path)
    except runs.RunError as error:
        assert "\n" not in str(error)
        return None


@LOGS
def test_a_log_truncated_anywhere_gives_no_wrong_number(tmp_path, log, truth):
    path = tmp_path / "log"
    seen = 0
    for length in sorted({*range(0, len(log), 19), *range(len(log) - 50, len(log))}):
        df = read_or_none(path, log[:length])
        if df is not None:
            assert_only_true_numbers(df, truth)
            assert (df["status"] != "completed").all() or length >= len(log.rstrip()) - 50
            rows = int(df["epoch"].notna().sum())
            assert rows >= seen, "a longer log must not give fewer epochs"
            seen = rows
    assert seen >= len(truth) - 1


@LOGS
def test_a_log_whose_head_is_lost_gives_no_wrong_number(tmp_path, log, truth):
    for start in range(0, len(log), 25):
        df = read_or_none(tmp_path / "log", log[start:])
        if df is not None:
            assert_only_true_numbers(df, truth)


# What other processes write in the middle of a line: anything that is not itself a piece of a number.
FOREIGN = st.binary(max_size=30).map(lambda b: b"WARN" + re.sub(rb"[0-9:,.#]", b"?", b) + b"\n")


@LOGS
@FUZZ
@given(data=st.data())
def test_foreign_output_in_a_log_gives_no_wrong_number_and_flipped_bytes_no_other_error(
        tmp_path_factory, log, truth, data):
    content = bytearray(log)
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(log) - 1), st.integers(0, 255)), max_size=40)):
        content[at] = byte
    flipped = read_or_none(tmp_path_factory.getbasetemp() / "log", bytes(content))
    if flipped is not None:
        runs.seconds_per_epoch(flipped)
    content = log
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        content = content[:at] + data.draw(FOREIGN) + content[at:]
    df = read_or_none(tmp_path_factory.getbasetemp() / "log", content)
    if df is not None:
        assert_only_true_numbers(df, truth)


# ---------------------------------------------------------------- many logs


def test_many_logs_make_one_table(write, tmp_path):
    for name in ("b.jsonl", "a.txt", "sub/c.log"):
        write(as_text(whole_log()), name)
    write("text about the logs", "README.txt")
    write("ignored", "notes.md")
    for paths in (tmp_path, str(tmp_path), [tmp_path], [tmp_path, tmp_path / "a.txt"]):
        df = runs.read_runs(paths)
        assert list(dict.fromkeys(df["label"])) == ["a", "b", "c"] and len(df) == 9
    assert set(runs.read_runs(str(tmp_path / "*.jsonl"))["label"]) == {"b"}
    assert set(runs.read_runs([tmp_path / "b.jsonl", tmp_path / "a.txt"])["label"]) == {"a", "b"}
    df = runs.read_runs({"first": tmp_path / "b.jsonl", "again": tmp_path / "b.jsonl"})
    assert df.groupby("label", sort=False).size().to_dict() == {"first": 3, "again": 3}


def test_runs_of_one_name_are_told_apart(write, tmp_path):
    for name in ("x/a.jsonl", "y/a.jsonl", "y/a.txt", "b.jsonl"):
        write(as_text(whole_log()), name)
    labels = set(runs.read_runs(tmp_path)["label"])
    assert labels == {"b", "x/a", "y/a #1", "y/a #2"}


def test_one_unreadable_log_does_not_lose_the_others(write, tmp_path):
    good = write(as_text(whole_log()), "good.jsonl")
    bad = write("hello", "bad.jsonl")
    with pytest.warns(UserWarning) as caught:
        df = runs.read_runs([bad, good, tmp_path / "none.jsonl"])
    assert set(df["label"]) == {"good"}
    assert ["bad.jsonl" in str(caught[0].message), "none.jsonl" in str(caught[1].message)] == [True, True]
    assert not any("\n" in str(w.message) for w in caught)


def test_recorded_runs_are_known_by_their_folder(write, tmp_path):
    df = runs.read_run(write(as_text(whole_log()), "results/recorded/dgx/a.jsonl"))
    assert (df["source"].iloc[0], df["machine"].iloc[0]) == ("recorded", "dgx")
    df = runs.read_run(write(as_text(whole_log()), "results/live/a.jsonl"))
    assert (df["source"].iloc[0], df["machine"].iloc[0]) == ("live", "this machine")


# ---------------------------------------------------------------- comparing


def test_seconds_per_epoch_leaves_the_warm_up_out(write):
    log = [run_record(epochs=4), *(epoch_record(i, seconds=s, images_per_second=v, loss=i) for i, s, v in
                                   [(0, 90.0, 1), (1, 4.0, 10), (2, 6.0, 30), (3, 5.0, 20)])]  # fmt: skip
    table = runs.seconds_per_epoch(runs.read_run(write(as_text(log))))
    row = table.iloc[0]
    assert [row[k] for k in ("epochs", "seconds", "images_per_second", "loss", "status")] == [
        4, 5.0, 20, 3, "unfinished"]
    assert list(table.columns) == runs.TABLE_COLUMNS


def test_seconds_per_epoch_of_one_epoch_and_of_none(write):
    one = write(as_text([run_record(), epoch_record(0, seconds=8.0, images_per_second=None)]), "one.jsonl")
    none = write(as_text([run_record()]), "none.jsonl")
    table = runs.seconds_per_epoch(runs.read_runs([one, none])).set_index("label")
    assert table["epochs"].tolist() == [1, 0]
    assert table.loc["one", "seconds"] == 8.0 and table.loc["one", "images_per_second"] == 50000 / 8
    assert table.loc["none", ["seconds", "images_per_second", "loss"]].isna().all()


def test_speed_up_and_efficiency(write):
    """DataParallel is neither a baseline nor one worker."""
    logs = [run_with(write, "one", 1, 12.0), run_with(write, "dp", 1, 8.0, strategy="dp"),
            run_with(write, "two", 2, 6.0), run_with(write, "eight", 8, 8.0, ended=False)]
    table = runs.speedup_table(runs.read_runs(logs)).set_index("label")
    assert table["speedup"].tolist() == [1, 1.5, 2, 1.5]
    assert table["efficiency"].drop("dp").tolist() == [1, 1, 1.5 / 8] and pd.isna(table.loc["dp", "efficiency"])
    assert set(table["baseline"]) == {"one"}
    assert table["oversubscribed"].tolist() == [False, False, False, True]
    assert table.loc["eight", "status"] == "unfinished"
    assert "this run unfinished: from 3 epochs" in table.loc["eight", "note"] and table.loc["two", "note"] == ""


def test_a_baseline_may_be_named(write, tmp_path):
    df = runs.read_runs(
        [run_with(write, "one", 1, 12.0), run_with(write, "uno", 1, 6.0), run_with(write, "two", 2, 6.0)]
    )
    with pytest.raises(runs.RunError, match="several baselines"):
        runs.speedup_table(df)
    assert runs.speedup_table(df, baseline="one")["speedup"].tolist() == [1, 2, 2]
    assert runs.speedup_table(df, baseline="two")["speedup"].tolist() == [0.5, 1, 1]
    with pytest.raises(runs.RunError, match="no run is called 'three'"):
        runs.speedup_table(df, baseline="three")
    with pytest.raises(runs.RunError, match="no timed run with world size 1"):
        runs.speedup_table(df[df["label"] == "two"])
    untimed = write(as_text([run_record(world_size=1)]), "untimed.jsonl")
    with pytest.raises(runs.RunError, match="no timed epoch"):
        runs.speedup_table(runs.read_runs([untimed, tmp_path / "two.jsonl"]), baseline="untimed")


def test_live_and_recorded_runs_are_never_compared(write):
    live = [run_with(write, "one", 1, 12.0), run_with(write, "two", 2, 6.0)]
    recorded = [run_with(write, f"results/recorded/dgx/{n}", n, 4.0 / n) for n in (1, 4)]
    table = runs.speedup_table(runs.read_runs(live + recorded), baseline="one")
    assert table["speedup"].tolist() == [1, 2, 1, 4]
    assert table["baseline"].tolist() == ["one", "one", "1", "1"]
    with pytest.raises(runs.RunError, match="recorded runs on dgx: no timed run with world size 1"):
        runs.speedup_table(runs.read_runs(live + recorded[1:]))


def test_different_numbers_of_images_are_compared_by_images_a_second(write):
    logs = [run_with(write, "one", 1, 10.0, samples=1000), run_with(write, "two", 2, 10.0, samples=2000)]
    assert runs.speedup_table(runs.read_runs(logs))["speedup"].tolist() == [1, 2]
    logs[1] = run_with(write, "two", 2, 10.0, samples=None)
    assert math.isnan(runs.speedup_table(runs.read_runs(logs))["speedup"].iloc[1])


def test_another_model_is_not_compared(write):
    logs = [run_with(write, "one", 1), run_with(write, "two", 2, model="resnet")]
    table = runs.speedup_table(runs.read_runs(logs))
    assert math.isnan(table["speedup"].iloc[1]) and table["note"].iloc[1] == "not comparable with one: another model"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (dict(world_size=8, local_world_size=4, nodes=2, cores=4), False),
        (dict(world_size=8, local_world_size=None, nodes=2, cores=2), True),
        (dict(world_size=8, device="cuda"), None),
        (dict(world_size=8, cores=None), None),
        (dict(world_size=8, local_world_size=None, nodes=None), None),
        (dict(world_size=8, device=None), None),
    ],
)
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
    table = runs.speedup_table(df).set_index("label")
    assert table.loc["eight_gpus", "speedup"] == pytest.approx(32.31 / 7.03)
    for name, length in {"one_gpu": 564, "eight_gpus": 1000}.items():  # characters, as on the page
        assert len(re.sub("(?m)^# .*\n", "", (RECORDED / f"{name}.txt").read_text()).rstrip("\n")) == length


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
    assert status == 0 and err.startswith(f"runs.py: left out: {bad}: ") and err.count("\n") == 1
    rows = [text.split() for text in out.splitlines()]
    assert ["one", "live", "cifar10", "1", "1", "3", "12.00", "4,167", "1.00", "100%", "completed"] in rows
    assert "eight: more ranks than cores (2); no end record; this run unfinished: from 3 epochs" in out
    table = pd.read_csv(new / "table.csv")
    assert table["speedup"].tolist() == [1, 2]
    pictures = [path for path in out.splitlines() if path.endswith(".png")]
    names = ["loss_by_epoch", "loss_by_time", "accuracy_by_epoch", "phases", "accuracy_twice", "seconds_per_epoch",
             "throughput", "speedup", "efficiency"]
    assert pictures == [str(new / f"{name}.png") for name in names]
    assert sorted(map(str, new.iterdir())) == sorted([*pictures, str(new / "table.csv")])
    assert all(plt.imread(path).std() > 0 for path in pictures) and not plt.get_fignums()


def test_the_command_draws_runs_without_a_baseline_and_says_what_it_leaves_out(command, tmp_path):
    status, out, err = command(RECORDED / "eight_gpus.txt", "--plots", tmp_path)
    assert status == 0 and (tmp_path / "throughput.png").exists() and not (tmp_path / "speedup.png").exists()
    assert [line.split(":")[1].strip() for line in err.splitlines()] == [
        "no speed-up, no efficiency", "phases", "accuracy_twice", "speedup", "efficiency"]


@pytest.mark.parametrize("arguments", [["none.jsonl"], [RECORDED, "--baseline", "x"], [RECORDED / "eight_gpus.txt"]])
def test_bad_input_gives_one_line_and_status_2(arguments, command, tmp_path):
    status, out, err = command(*arguments, "--csv", tmp_path / "t.csv")
    assert (status, out, err.count("\n")) == (2, "", 1) and err.startswith("runs.py: ")
    assert not list(tmp_path.iterdir())
