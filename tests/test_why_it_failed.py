"""why_it_failed.py names the cause of a launch that failed, and the rank that failed first."""

import socket
import subprocess
import sys

import pytest

from course import failures
from tests import runner

WHY = [sys.executable, "scripts/cluster/why_it_failed.py"]


def run(*command, **env):
    return subprocess.run(list(map(str, command)), cwd=runner.ROOT, env=runner.environment(**env), capture_output=True,
                          text=True, timeout=runner.LIMIT)


def ask(*command, **env):
    """why_it_failed.py's lines about a command: {"status": ..., "it said": ..., "why": ...}, and its exit status."""
    done = run(*WHY, "--within=100", "--expect-failure", "--", *command, **env)
    assert done.stderr == "", done.stderr
    lines = dict(line.split(":", 1) for line in done.stdout.splitlines() if ":" in line)
    return {key: value.strip() for key, value in lines.items()}, done.returncode


def test_a_port_in_use_is_named():
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        found, status = ask(*runner.command(2, f"--master-port={port}", "lessons/start/train.py"))
    assert status == 0 and f"port {port} of this node is in use" in found["why"], found


@pytest.mark.parametrize(("rank_1", "why"), [
    ("os.kill(os.getpid(), signal.SIGKILL)", "a rank was killed (SIGKILL)"),
    ("sys.exit(7)", "rank 1 ended with exit status 7"),
])
def test_the_rank_that_failed_first_is_the_one_that_counts(rank_1, why, tmp_path):
    script = tmp_path / "rank.py"
    script.write_text("import os, signal, sys, time\n"
                      f"if os.environ['RANK'] == '1':\n    time.sleep(1)\n    {rank_1}\ntime.sleep(600)\n")
    found, status = ask(*runner.command(2, script))
    assert status == 0 and found["why"].startswith(why), found


def test_a_command_that_takes_too_long_is_ended():
    """With all that it has started: tests/test_processes.py."""
    done = run(*WHY, "--within=1", "--", "sleep", "60")
    assert done.returncode == 124 and "start it on all nodes" in done.stdout


def test_success_and_an_unknown_cause_are_no_expected_failure_and_else_the_status_is_the_command_s():
    assert run(*WHY, "--", sys.executable, "-c", "raise SystemExit(3)").returncode == 3
    assert ask("true")[1] == 1
    found, status = ask(sys.executable, "-c", "raise SystemExit('no')")
    assert status == 1 and found["why"].startswith("not known here")
    done = run(*WHY, "--log", "results/recorded/failed-launches/A.out")
    assert done.returncode == 1 and "why:     a rank raised " in done.stdout


@pytest.mark.parametrize(("said", "why"), [
    ("0: RuntimeError: rank 0 of 2 waited for the others, 5 s at most, at env:// node1:29500",
     "rank 0 of 2 waited for the others"),
    ("rank 0 of 2 cannot listen at 127.0.0.1:29500: another program does. Choose another MASTER_PORT",
     "rank 0 of 2 cannot listen at 127.0.0.1:29500: another program does. Choose another MASTER_PORT"),
    ("torch.distributed.DistStoreError: Timed out after 4 seconds waiting for clients. 1/2 clients joined.",
     "only 1 of 2 ranks came"),
    ("[rank0]: RuntimeError: [/pytorch/gloo/buffer.cc:78] Timed out waiting 3000ms for recv operation to complete",
     "the ranks met, and then one did not take part in a collective within 3000 ms"),
    ("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, Timeout(ms)=600000) ran for",
     "the ranks met, and then one did not take part in a collective within 600000 ms"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
     "Slurm killed a process"),
    ("slurmstepd: error: *** STEP 7.0 ON node1 CANCELLED AT 2026-11-26T17:19:22 DUE TO TIME LIMIT ***\n"
     "torch.distributed.elastic.multiprocessing.api.SignalException: Process 19 got signal: 15",
     "the job reached its time limit"),
    ("[rank1]: ValueError: bad\n[rank0]: RuntimeError: Timed out waiting 3000ms for recv operation to complete",
     "a rank raised ValueError: bad"),
    ("0: 96 images, 10 ranks\n0: W1128 23:18:48 76 torch/api.py:1028] Sending process 83 closing signal SIGTERM\n"
     "0: E1128 23:18:48 76 torch/api.py:1002] failed (exitcode: 2) local_rank: 0 (pid: 82) of binary: python\n"
     "1: torch.distributed.DistNetworkError: Failed to recv",
     "a rank ended itself with status 2; the line before that was: 96 images, 10 ranks")])
def test_a_log_is_explained_too(said, why):
    assert failures.explain(said)[1].startswith(why)
