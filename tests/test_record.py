"""scripts/record: what a machine does, recorded whole or not at all."""

import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from course import runs
from scripts import record_machine as record
from tests import runner


@pytest.fixture
def recorded(monkeypatch):
    """The folder of recordings, in place of results/recorded: one that git ignores."""
    monkeypatch.chdir(runner.ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(record, "RECORDED", Path(f"results/live/recorded-{os.getpid()}"))
    record.RECORDED.mkdir(parents=True)
    yield record.RECORDED
    shutil.rmtree(record.RECORDED)


def typed(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["record_machine.py", *words])
    record.main()


@pytest.mark.weekly
def test_a_machine_is_recorded_and_no_machine_named(recorded, monkeypatch, capsys):
    typed(monkeypatch, "my-box", "--quick")
    assert [path.name for path in recorded.iterdir()] == ["my-box"], "and nothing beside it"
    made = recorded / "my-box"
    files = {"1-rank.jsonl", "2-ranks.jsonl", "losses.json", "benchmark.json", "benchmark.out", "gpu-tests.out"}
    assert {path.name for path in made.iterdir()} == files | {"README.md"}
    assert made.stat().st_mode == recorded.stat().st_mode, "others may read it"
    table = runs.speedup_table(runs.read_runs(made))
    assert list(table.world_size) == [1, 2]
    speeds = json.loads((made / "losses.json").read_text())["speeds"]
    assert [(each["way"], each["ranks"]) for each in speeds] == [("alone", 1), ("apart", 2), ("ddp", 2)]
    assert re.search(r"\d+ (skipped|passed)", (made / "gpu-tests.out").read_text())
    benchmark = json.loads((made / "benchmark.json").read_text())
    (figures,) = benchmark["rounds"]["epoch"]
    assert benchmark["samples"] == 256 and benchmark["versions"]["torch"] and 0 < figures["main.py data share"] < 1
    assert "main.py / textbook" in (made / "benchmark.out").read_text()
    readme = (made / "README.md").read_text()
    assert f"torchrun --nproc_per_node=2 main.py {record.QUICK} --log-file {made}/2-ranks.jsonl" in readme
    assert "**The times say nothing**" in readme
    text = "".join(path.read_text() for path in made.iterdir())
    for name in (rf"\b{re.escape(socket.gethostname())}\b", re.escape(str(runner.ROOT)), re.escape(f"{Path.home()}/")):
        assert not re.search(name, text), name
    with pytest.raises(SystemExit) as ended:
        typed(monkeypatch, "my-box", "--quick")
    assert ended.value.code == 2 and "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "My-Box", "a/b", "x" * 41])
def test_a_name_that_no_folder_should_have_is_one_line(name, recorded, monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        typed(monkeypatch, "--", name)
    said = capsys.readouterr()
    assert ended.value.code == 2 and len(said.err.splitlines()) == 1 and said.out == ""
    assert list(recorded.iterdir()) == []


def test_a_run_that_fails_leaves_nothing(recorded, monkeypatch):
    monkeypatch.setattr(record, "commands", lambda folder, quick: {
        "tests": "python -c 'raise SystemExit(1)'", "1 rank": f"python main.py --log-file {folder} --epochs 1"})
    before = set(Path("results/live").iterdir())
    with pytest.raises(SystemExit, match="(?s)is a folder: name a file.*main.py.*exit status 2; nothing was recorded"):
        typed(monkeypatch, "my-box")
    assert list(recorded.iterdir()) == [] and set(Path("results/live").iterdir()) == before


def test_what_names_the_machine_is_left_out(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu07")
    monkeypatch.setattr(record.tempfile, "gettempdir", lambda: "/scratch/ann")
    monkeypatch.setenv("HOME", "/")
    assert record.without_names("gpu07: /scratch/ann/x at gpu07.lan, gpu071") == "(host): x at (host).lan, gpu071"
