"""Processes and ranks: what notebook 03 says of the launchers is a fact here."""

import json
import os
import signal
import subprocess
import sys
import uuid

import pytest

from course import failures, processes
from lessons.l03_processes_and_ranks import show
from tests import runner

LAUNCH = [sys.executable, "lessons/start/ours/launch.py"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.mark.parametrize(("launcher", "listens"), [
    ([*LAUNCH, "2"], "rank 0"), pytest.param([*TORCHRUN, "--nproc_per_node=2"], "launcher", marks=pytest.mark.weekly)])
def test_a_rank_waits_for_the_silent_one_until_the_timeout_and_the_launcher_ends_that_one(launcher, listens, tmp_path):
    program = ["lessons/l03_processes_and_ranks/milestones.py", "--wait", "1", "--out", str(tmp_path)]
    mark = uuid.uuid4().hex
    status, output = processes.run_and_read([*launcher, *program], runner.LIMIT, mark, env=runner.environment(),
                                            cwd=runner.ROOT)
    assert status == 1 and "1000ms" in failures.explain(output)[0], output
    first, silent = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert show.listener(tmp_path) == listens
    assert first["gave up"] - first["first all-reduce"] >= 1 and "gave up" not in silent


def test_ctrl_c_ends_the_ranks_of_the_launcher(tmp_path):
    mark = uuid.uuid4().hex
    sleeps = tmp_path / "sleeps.py"
    sleeps.write_text("import os, time\nopen(os.environ['RANK'], 'w').close()\ntime.sleep(60)\n")
    launcher = subprocess.Popen([LAUNCH[0], str(runner.ROOT / LAUNCH[1]), "2", str(sleeps)], cwd=tmp_path,
                                env=processes.environment(mark, os.environ), stderr=subprocess.DEVNULL)
    try:
        runner.wait_for(lambda: {"0", "1"} <= {file.name for file in tmp_path.iterdir()}, "both ranks")
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(runner.LIMIT) != 0
        assert processes.marked(mark) == []
    finally:
        processes.end(mark)
