"""No process is left: whatever a command of the course has started ends with it."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from course import processes
from tests import runner

ENDLESS = ["--dataset", "synthetic", "--samples", 200, "--test-samples", 11, "--epochs", 10**6]
TRAIN = [*runner.command(2, "main.py", *ENDLESS), "--log-file", "{folder}/run.jsonl"]
STOPPED = [  # how many ranks must have met, the signal, and the command line
    (2, signal.SIGINT, runner.command(0, "-m", "gallery", "show", "hang_rank_0")),
    pytest.param(2, signal.SIGHUP, runner.command(0, "scripts/cluster/why_it_failed.py", "--within=900", "--", *TRAIN),
                 marks=pytest.mark.weekly),
]


def ranks_that_met(mark):
    ranks = [process for process in processes.marked(mark) if "RANK" in process.info["environ"]]
    with contextlib.suppress(psutil.Error):
        return sum(bool(rank.net_connections()) for rank in ranks)
    return 0


@pytest.mark.parametrize(("ranks", "sign", "words"), STOPPED, ids=["gallery", "why_it_failed"])
def test_a_command_that_is_stopped_leaves_no_process(ranks, sign, words, tmp_path):
    mark = str(tmp_path)
    process = subprocess.Popen([word.format(folder=tmp_path) for word in words], cwd=runner.ROOT,
                               env=processes.environment(mark, runner.environment()), start_new_session=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # torchrun leaves ranks behind if a signal comes while it still starts them
        runner.wait_for(lambda: ranks_that_met(mark) >= ranks or process.poll() is not None, "ranks that have met")
        assert process.poll() is None
        process.send_signal(sign)
        assert process.wait(60) != 0
        assert psutil.wait_procs(processes.marked(mark), timeout=10)[1] == []
    finally:
        processes.end(mark)


@pytest.mark.parametrize("loading", [0, 1])
def test_ctrl_c_while_a_program_starts_leaves_no_process(loading, tmp_path, monkeypatch):
    start, environ, shown = subprocess.Popen, psutil.Process.environ, time.monotonic() + loading

    def interrupted(*command, **options):
        start(*command, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    monkeypatch.setattr(psutil.Process, "environ", lambda self: environ(self) if time.monotonic() > shown else {})
    with pytest.raises(KeyboardInterrupt):
        processes.run(["sleep", "1000"], 100, tmp_path)
    monkeypatch.undo()
    assert not processes.marked(tmp_path)


def test_a_run_with_a_limit_ends_sessions_of_their_own_and_spares_others(tmp_path):
    pids = tmp_path / "pids"
    child = f"import os, time; open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True); "
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                             env={**os.environ, processes.MARK: "another mark"})
    try:
        assert processes.run([sys.executable, "-c", f"{parent}{child}"], 5, "a mark") is None
        assert len(pids.read_text().split()) == 2 and not processes.marked("a mark")
        # a command that ends by itself, and leaves a child
        assert processes.run([sys.executable, "-c", parent + "raise SystemExit(3)"], 60, "a mark") == 3
        assert not processes.marked("a mark") and other.poll() is None
    finally:
        other.kill()
        other.wait()
