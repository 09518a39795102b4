"""The sbatch files on a real Slurm, and the lab that starts one. Skips only where Slurm is not installed."""

import json
import re
import shutil
import subprocess
import sys

import psutil
import pytest
import torch

from course import runs
from course import slurm as slurm_lab
from tests import runner, test_main

SCRIPT = [sys.executable, "scripts/cluster/slurm_lab.py"]
FILES = {"ranks": "srun", "torchrun": "torchrun"}  # each sbatch file, and who starts its ranks
ONE_EACH = ["--gpus-per-node=0", "--ntasks-per-node=1", "--cpus-per-task=1"]  # two nodes, a rank on each

# 1200 images in global batches of 96: the last batch has 48, which 2, 3 and 4 ranks share equally.
SMALL = [*test_main.SMALL, "--device", "cpu", "--samples", 1200, "--no-shuffle"]
LONG = [*SMALL, "--epochs", 1_000_000, "--batch-size", 48]

installed = pytest.mark.skipif(bool(slurm_lab.missing()), reason=str(slurm_lab.missing()))
each_file = pytest.mark.parametrize("file", ["ranks", pytest.param("torchrun", marks=pytest.mark.weekly)])


@pytest.fixture(scope="module")
def slurm():
    if reason := slurm_lab.missing():
        pytest.skip(reason)
    with slurm_lab.Slurm(nodes=2, gpus=8) as running:
        yield running


@pytest.fixture
def course(tmp_path):
    """A folder with the course's main.py and data, where the jobs of a test leave their logs."""
    (tmp_path / "main.py").symlink_to(runner.ROOT / "main.py")
    (tmp_path / "data").symlink_to(runner.ROOT / "data")
    return tmp_path


def environment(**changes):
    """A fresh shell's, without what this shell may tell sbatch and srun."""
    return {k: v for k, v in runner.environment(**changes).items()
            if not k.startswith(("SBATCH_", "SRUN_")) or k in changes}


def submit(slurm, folder, file, *options, sbatch=ONE_EACH, **env):
    """The number of the job. Its logs go into `folder`."""
    path = runner.ROOT / "scripts" / "cluster" / f"{file}.sbatch"
    done = slurm.run(["sbatch", "--parsable", *sbatch, path, *options], cwd=folder, env=environment(**env))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def facts(slurm, job):
    """What Slurm knows about a job: {"JobState": "RUNNING", ...}."""
    return dict(re.findall(r"(\S+?)=(\S*)", slurm.run(["scontrol", "--oneliner", "show", "job", job]).stdout))


def wait_for_end(slurm, job, seconds=runner.LIMIT):
    states = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
    runner.wait_for(lambda: facts(slurm, job)["JobState"] not in states, f"job {job} to end", seconds)
    return facts(slurm, job)


def processes(**wanted):
    """All processes on this machine with these values in their environment."""
    matching = []
    for process in psutil.process_iter():
        try:
            if wanted.items() <= process.environ().items():
                matching.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):  # another user's; it has just ended
            continue
    return matching


def of_job(slurm, job, **wanted):
    return processes(SLURM_LAB=str(slurm.folder), SLURM_JOB_ID=job, **wanted)


def output(folder, job):
    return (folder / f"slurm-{job}.out").read_text()


def log_of(folder, job):
    return folder / "results" / "live" / f"slurm-{job}.jsonl"


def wait_for_epoch(folder, job):
    log = log_of(folder, job)
    runner.wait_for(lambda: log.exists() and '"epoch"' in log.read_text(), f"job {job}'s first epoch")


def script(folder, text):
    """A main.py of the test's own, in a folder for its jobs."""
    rank = "rank = os.environ.get('RANK', os.environ['SLURM_PROCID'])"
    (folder / "main.py").write_text(f"import os, sys, time\n{rank}\n{text}\n")


def own_python(folder, text):
    """A .venv whose programs are shell scripts."""
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "torchrun"):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)


# ----------------------------------------------------------------------------------------------------- the sbatch files


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """What test_main.train() gives of one process on the global batch."""
    return test_main.train(tmp_path_factory.mktemp("one"), 0, *SMALL, "--batch-size", 96)


@pytest.mark.parametrize(("file", "local_ranks", "sbatch", "env"), [
    ("ranks", [2, 1], ["--gpus-per-node=0", "--ntasks=3", "--ntasks-per-node=2", "--cpus-per-task=1"], {}),
    pytest.param("torchrun", [2, 2], ["--gpus-per-node=0", "--cpus-per-task=2"], {"RANKS_PER_NODE": "2"},
                 marks=pytest.mark.weekly),
], ids=["ranks-2-1", "torchrun-2-2"])
def test_all_ranks_train_the_model_of_one_process(file, local_ranks, sbatch, env, slurm, course, one_process):
    job = submit(slurm, course, file, *SMALL, "--batch-size", 96 // sum(local_ranks), "--save-model", "model.pt",
                 sbatch=sbatch, **env)
    job_facts = wait_for_end(slurm, job)
    assert (job_facts["JobState"], job_facts["NodeList"]) == ("COMPLETED", "node[1-2]"), output(course, job)

    epochs = runs.read_runs(course / "results" / "live")  # one run: Slurm's own output is not read as another
    assert set(epochs["path"]) == {str(log_of(course, job))} and set(epochs["status"]) == {"completed"}
    expected_run = {"nodes": 2, "world_size": sum(local_ranks), "local_world_size": local_ranks[0], "threads": 1,
                    "launcher": FILES[file], "strategy": "ddp", "backend": "gloo"}
    assert {name: epochs[name].iloc[-1] for name in expected_run} == expected_run

    weights = torch.load(course / "model.pt", weights_only=True)
    test_main.compare((weights, epochs.to_dict("records"), None), one_process, moved=1e-3)
    norm = torch.stack([value.double().norm() for value in weights.values()]).norm().item()
    assert epochs["weight_norm"].iloc[-1] == pytest.approx(norm, rel=1e-6)  # main.py stops where a rank has another
    console = runs.read_run(course / f"slurm-{job}.out")
    assert list(console["loss"]) == pytest.approx(list(epochs["loss"]), abs=1e-4)


@pytest.mark.weekly
def test_a_gpu_bound_to_each_task_is_its_own(slurm, tmp_path):
    """Slurm believes that each node has GPUs, and tells each task which it may see: torch is made to believe that."""
    (tmp_path / "who.py").write_text("""import os, torch
from trainer import launch
torch.accelerator.is_available, torch.accelerator.current_accelerator = lambda: True, lambda: torch.device("cuda")
torch.accelerator.device_count = lambda: len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
placement = launch.find_placement()
print(placement.local_rank, os.environ["CUDA_VISIBLE_DEVICES"], placement.device, placement.backend)
""")
    done = slurm.run(["srun", "--nodes=1", "--ntasks=2", "--gpus-per-node=2", "--gpu-bind=single:1", sys.executable,
                      tmp_path / "who.py"], env=environment(PYTHONPATH=str(runner.ROOT)))
    assert sorted(done.stdout.splitlines()) == ["0 0 cuda:0 nccl", "1 1 cuda:0 nccl"], done.stderr


@each_file
def test_a_node_where_nothing_starts_ends_the_job(file, slurm, course):
    """The other node's ranks, or its torchrun, would wait ten minutes for it: it must be srun that ends them."""
    own_python(course, f"""
[ $SLURM_PROCID = 0 ] || {{ sleep 2; exit 3; }}  # at once, srun may miss a rank that is not there yet
case $0 in */torchrun) set -- -m torch.distributed.run "$@" ;; esac
exec '{sys.executable}' "$@"
""")
    job = submit(slurm, course, file, *LONG)
    job_facts = wait_for_end(slurm, job, 100)
    assert (job_facts["JobState"], job_facts["Reason"]) == ("FAILED", "NonZeroExitCode"), output(course, job)
    assert "task 1: Exited with exit code 3" in output(course, job)
    runner.wait_for(lambda: not of_job(slurm, job), "the job's processes to end", 60)


@each_file
def test_a_killed_rank_ends_the_job(file, slurm, course):
    job = submit(slurm, course, file, *LONG)
    wait_for_epoch(course, job)
    rank_1 = max(of_job(slurm, job, SLURM_NODEID="1"), key=psutil.Process.create_time)  # a torchrun is older
    rank_1.kill()
    job_facts = wait_for_end(slurm, job, 100)
    assert (job_facts["JobState"], job_facts["Reason"]) == ("FAILED", "NonZeroExitCode"), output(course, job)
    runner.wait_for(lambda: not of_job(slurm, job), "the job's processes to end", 60)
    # Rank 0 loses its neighbour, and writes so, unless Slurm's signal is faster.
    assert runs.read_run(log_of(course, job))["status"][0] in ("failed", "unfinished")


@pytest.mark.weekly
@each_file
def test_a_job_that_is_warned_is_queued_again_and_goes_on(file, slurm, course):
    job = submit(slurm, course, file, *LONG)
    wait_for_epoch(course, job)
    slurm.run(["scancel", "--signal=USR1", job])  # as --signal does before the time is over
    runner.wait_for(lambda: '"restart"' in log_of(course, job).read_text(), f"job {job} to go on")
    before = len(runs.read_run(log_of(course, job)))
    runner.wait_for(lambda: len(runs.read_run(log_of(course, job))) > before, "another epoch")
    slurm.run(["scancel", job])
    runner.wait_for(lambda: not of_job(slurm, job), "the cancelled job's processes to end", 60)
    job_facts, epochs = wait_for_end(slurm, job), runs.read_run(log_of(course, job))
    assert (job_facts["JobState"], job_facts["Restarts"]) == ("CANCELLED", "1"), "a cancelled job is not queued again"
    assert list(epochs["epoch"]) == list(range(len(epochs))) and set(epochs["restarts"]) == {1}
    records = [json.loads(line) for line in log_of(course, job).read_text().splitlines()]
    assert [r["epoch"] for r in records if r["kind"] == "epoch"] == list(epochs["epoch"]), "an epoch stands twice"


@each_file
def test_what_a_rank_is_given(file, slurm, tmp_path):
    """Two GPUs a node, three cores a GPU; partition and account from the environment; other files than the course's."""
    script(tmp_path, r"""
said = [*sys.argv[1:], os.environ["CUDA_VISIBLE_DEVICES"], os.environ["OMP_NUM_THREADS"], rank, sys.executable]
os.write(1, f"{' '.join(said)}\n".encode())  # in one go: the ranks of a torchrun share a pipe
""")
    cores = ["--ntasks-per-node=2", "--cpus-per-task=3"] if file == "ranks" else ["--cpus-per-task=6"]
    job = submit(slurm, tmp_path, file, "--epochs", 7, sbatch=["--gpus-per-node=2", *cores], SBATCH_PARTITION="spare",
                 SBATCH_ACCOUNT="vision")
    job_facts = wait_for_end(slurm, job)
    assert job_facts["JobState"] == "COMPLETED", output(tmp_path, job)
    assert (job_facts["Partition"], job_facts["Account"]) == ("spare", "vision")
    assert (job_facts["Requeue"], job_facts["TimeLimit"], job_facts["NumCPUs"]) == ("1", "01:00:00", "12")
    said = sorted(line.partition(": ")[2] for line in output(tmp_path, job).splitlines() if "--epochs" in line)
    logs = f"--log-file results/live/slurm-{job}.jsonl --checkpoint results/live/slurm-{job}.pt"
    assert said == [f"{logs} --epochs 7 0,1 3 {rank} {sys.executable}" for rank in range(4)]


@each_file
def test_the_files_as_they_stand_are_accepted(file, slurm):
    """Two nodes, 8 GPUs and 64 cores each. --test-only: 16 ranks are too many for a test."""
    path = runner.ROOT / "scripts" / "cluster" / f"{file}.sbatch"
    done = slurm.run(["sbatch", "--test-only", "--verbose", path], env=environment())
    assert done.returncode == 0 and "using 128 processors on nodes node[1-2]" in done.stderr, done.stderr
    assert re.search(r"signal +: USR1@120", done.stderr)


# -------------------------------------------------------------------------------------------------------------- the lab


@installed
def test_a_lab_that_is_killed_leaves_no_process():
    process = subprocess.Popen([*SCRIPT, "--nodes", "1", "--", "sh", "-c", "echo $SLURM_LAB; exec sleep 600"],
                               cwd=runner.ROOT, env=environment(), text=True, stdout=subprocess.PIPE)
    folder = process.stdout.readline().strip()
    assert len(processes(SLURM_LAB=folder)) >= 4  # munged, slurmctld, slurmd, sleep
    process.kill()
    process.communicate(timeout=60)
    runner.wait_for(lambda: not processes(SLURM_LAB=folder), "the lab's processes to end", 30)
    shutil.rmtree(folder, ignore_errors=True)


@installed
def test_a_lab_ends_with_the_status_of_its_command():
    command = ["--nodes", "1", "--", "srun", "sh", "-c", "hostname; exit 7"]
    done = subprocess.run([*SCRIPT, *command], cwd=runner.ROOT, env=environment(), capture_output=True, text=True,
                          timeout=60)
    assert (done.returncode, done.stdout) == (7, "node1\n")
