"""The small programs of lesson 10 under the real launchers, why_it_failed.py, and attempts in a notebook."""

import json
import socket
import subprocess
import sys
from itertools import product

import psutil
import pytest

from course import failures
from lessons.l10_launchers import check, show
from tests import runner

WHY = [sys.executable, "scripts/cluster/why_it_failed.py"]
torchrun = runner.command
HELLO = "lessons/l10_launchers/hello_rank.py"


def run(*command, **env):
    return subprocess.run(list(map(str, command)), cwd=runner.ROOT, env=runner.environment(**env), capture_output=True,
                          text=True, timeout=runner.LIMIT)


def ask(*command, **env):
    """why_it_failed.py's lines about a command: {"status": ..., "it said": ..., "why": ...}, and its exit status."""
    done = run(*WHY, "--within=100", "--expect-failure", "--", *command, **env)
    assert done.stderr == "", done.stderr
    lines = dict(line.split(":", 1) for line in done.stdout.splitlines() if ":" in line)
    return {key: value.strip() for key, value in lines.items()}, done.returncode


# ------------------------------------------------------------------------------------- what the launchers tell a rank


def hello(tmp_path, *command):
    done = run(*command, "--out", tmp_path / "hello.jsonl")
    assert done.returncode == 0, done.stderr
    return sorted(map(json.loads, (tmp_path / "hello.jsonl").read_text().splitlines()),
                  key=lambda record: (record["attempt"], record["rank"]))


def test_torchrun_tells_each_rank_its_place_and_starts_all_again_where_one_fails(tmp_path):
    processes = hello(tmp_path, *torchrun(3, "--max-restarts=1", HELLO, "--fail", 1))
    assert [(process["attempt"], process["rank"]) for process in processes] == list(product((0, 1), range(3)))
    assert [process["end"].split(" ", 2)[2] for process in processes] == [
        "gets SIGTERM", "fails", "gets SIGTERM", *3 * ["is done"]]
    assert len({process["pid"] for process in processes}) == 6
    for place, process in enumerate(processes):
        variables, rank = process["variables"], str(place % 3)
        expected = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "3", "TORCHELASTIC_RESTART_COUNT": f"{place // 3}"}
        assert expected.items() <= variables.items() and int(variables["MASTER_PORT"]) > 0
        assert set(variables) <= set(show.MEANING | show.MORE), "the lesson says what each one means"
        assert process["arguments"] == [] and process["passed"] is None


@pytest.mark.parametrize("launcher", ["torch.distributed.launch", "mp.spawn"])
def test_what_the_other_launchers_tell_their_ranks(launcher, tmp_path):
    command = {"mp.spawn": [sys.executable, HELLO, "--spawn", 2],
               "torch.distributed.launch": [sys.executable, "-m", launcher, "--nproc_per_node=2", HELLO]}[launcher]
    for rank, process in enumerate(hello(tmp_path, *command)):
        if launcher == "mp.spawn":
            assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(process["variables"])
            assert (process["rank"], process["passed"], process["arguments"]) == (rank, rank, [])
        else:
            assert {"RANK": str(rank), "WORLD_SIZE": "2"}.items() <= process["variables"].items()
            assert (process["rank"], process["arguments"]) == (rank, [f"--local-rank={rank}"])


# ------------------------------------------------------------------------------------------------ why_it_failed.py


def test_a_port_in_use_is_named():
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        found, status = ask(*torchrun(2, f"--master-port={port}", HELLO))
    assert status == 0 and f"port {port} of this node is in use" in found["why"], found


@pytest.mark.parametrize(("rank_1", "why"), [
    ("os.kill(os.getpid(), signal.SIGKILL)", "a rank was killed (SIGKILL)"),
    ("sys.exit(7)", "rank 1 ended with exit status 7"),
])
def test_the_rank_that_failed_first_is_the_one_that_counts(rank_1, why, tmp_path):
    script = tmp_path / "rank.py"
    script.write_text("import os, signal, sys, time\n"
                      f"if os.environ['RANK'] == '1':\n    time.sleep(1)\n    {rank_1}\ntime.sleep(600)\n")
    found, status = ask(*torchrun(2, script))
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
     "a rank raised ValueError: bad")])
def test_a_log_is_explained_too(said, why):
    assert failures.explain(said)[1].startswith(why)


# ---------------------------------------------------------------------------------- the lesson's own measurements


def test_attempts_in_a_notebook_work_fail_and_hang_and_leave_nothing(tmp_path):
    first = f"import os, sys, time\nopen({str(tmp_path)!r} + f'/started-{{os.getpid()}}', 'w')"
    assert show.in_a_notebook(first, "print('there', 6 * 7)", 60) == ("worked", "there 42")
    assert show.in_a_notebook(first, "1 / 0", 60) == ("failed", "ZeroDivisionError: division by zero")
    fork = f"if os.fork() == 0:\n    os.setsid()\n    {first.splitlines()[1]}\ntime.sleep(600)"
    assert show.in_a_notebook(first, fork, 5)[0] == "hung"
    pids = [int(path.name.split("-")[1]) for path in tmp_path.glob("started-*")]
    assert len(pids) == 4 and not any(  # one that is dead and not buried does not run
        pid in psutil.pids() and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


def test_what_torchrun_makes_of_its_options():
    static = show.launch_config("--nnodes=2 --node-rank=1 --master-addr=node0 --master-port=1234")
    assert list(show.rendezvous(static).values()) == ["2", "static", "node0:1234", "none", "900"]
    elastic = show.launch_config("--nnodes=1:2 --rdzv-backend=c10d --rdzv-endpoint=node0:29400 --rdzv-id=7")
    assert list(show.rendezvous(elastic).values()) == ["1 to 2", "c10d", "node0:29400", "7", "600"]


EACH_ITS_NUMBER = check.STATIC.replace("srun torchrun", "export first port; srun --label bash -c 'torchrun").replace(
    'main.py "$@"', "main.py \"$@\"' job \"$@\"")
A_TASK_A_RANK = '#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node 2\nsrun --label python main.py "$@"\n'


@pytest.mark.parametrize(("text", "outcome"), [
    (EACH_ITS_NUMBER, "right"), (A_TASK_A_RANK, "right"),
    (check.JOB.replace("srun", "srun -N 2 -n 2 --cpu-bind none"), "right"),
    (check.JOB.replace("\n\n", "\npython -c 'import torch'\n"), "right"),
    (check.JOB.replace("torchrun", "python -u -m torch.distributed.run"), "right"),
    (A_TASK_A_RANK.replace("main.py", "-m main.py"), "wrong"), (A_TASK_A_RANK.replace("-N 2", "-N 1"), "wrong"),
    (check.JOB.replace("#SBATCH --nodes=2", "cd .\n#SBATCH --nodes=2"), "wrong"),
    (check.JOB.replace("torchrun ", "torchrnu "), "wrong"), ("# only comments\n", "untried")])
def test_a_job_is_judged_by_what_it_starts(text, outcome, monkeypatch):
    monkeypatch.setattr("course.slurm.missing", lambda: "none is here")
    monkeypatch.setattr(check.job, "mistakes", {})  # to find the one behind a wrong file takes time
    assert check.job.verdict(text)[0] == outcome


def test_a_rehearsal_leaves_no_process():
    assert check.rehearse("sleep 4711 &\ntorchrun main.py", HOST_NAME="node0")[0][0]["words"] == ["main.py"]
    assert not [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", "4711"]]


def test_what_two_hosts_refuse_is_wrong_though_it_reads_well(monkeypatch):
    monkeypatch.setattr(check.Cluster, "available", lambda: None)
    monkeypatch.setattr(check, "on_two_hosts", lambda text: ([check.RANKS[0]], "no route to host"))
    monkeypatch.setattr(check.line, "mistakes", {})
    assert check.line.verdict(check.LINE)[0] == "wrong"
