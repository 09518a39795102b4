"""Launchers other than torchrun: their ranks are adopted, or refused in one line at once."""

import dataclasses

import pytest
import torch

from course import rendezvous
from tests import runner
from trainer import data, files, launch, options, run_log

SMALL = ["--dataset", "synthetic", "--samples", 64, "--test-samples", 32, "--epochs", 1, "--device", "cpu"]
STEP = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
MPI = {
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                 "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    "MPICH": {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
}
MEET = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("mpi", MPI)
@pytest.mark.parametrize("inside", [{}, STEP], ids=["alone", "in a Slurm step"])
def test_the_ranks_of_an_mpirun_are_adopted_where_they_can_meet(mpi, inside):
    placement = launch.find_placement("cpu", env={**inside, **MPI[mpi], **MEET})
    assert (placement.rank, placement.world_size, placement.local_rank, placement.local_world_size) == (3, 4, 1, 2)
    assert (placement.launcher, placement.nodes, placement.meet_at) == ("mpirun", 2, "tcp://node1:29500")
    with pytest.raises(files.Refused, match="set MASTER_ADDR"):
        launch.find_placement("cpu", env={**inside, **MPI[mpi]})


def test_slurms_own_variables_for_mpi_are_no_mpirun():
    placement = launch.find_placement("cpu", env={**STEP, "PMI_RANK": "0", "PMI_SIZE": "4"})
    assert (placement.launcher, placement.world_size) == ("srun", 4)


@pytest.mark.weekly
def test_two_ranks_of_an_mpirun_train_together():
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(rendezvous.free_port())}
    tasks = runner.together([{**meet, "PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(rank),
                              "MPI_LOCALNRANKS": "2"} for rank in (0, 1)], *SMALL, "--verbose")
    assert [task.returncode for task in tasks] == [0, 0], [task.stderr for task in tasks]
    for rank, task in enumerate(tasks):
        assert task.stderr.startswith(f"rank {rank} of 2 on ") and ": cpu, gloo\n" in task.stderr
    assert "2 rank(s) x batch 64" in tasks[0].stderr and "Epoch: 0" not in tasks[1].stderr


def test_a_torchrun_of_each_node_that_mpirun_started_is_torchrun():
    node = {**MPI["Open MPI"], "OMPI_COMM_WORLD_SIZE": "4", **MEET, "RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2"}
    alone = {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}  # mpirun -np 4 torchrun --standalone
    for env in (node, node | alone):
        assert launch.find_placement("cpu", env=env).launcher == "torchrun"


@pytest.mark.parametrize(("launcher", "warned"), [("torchrun", True), ("mpirun", False), ("srun", False)])
def test_ranks_with_cores_of_their_own_are_not_said_to_share_them(launcher, warned, monkeypatch, caplog):
    """mpirun keeps each of two ranks to one core: seen from a rank, there is no other."""
    monkeypatch.setattr(run_log, "cores", lambda: 1)
    monkeypatch.setattr(run_log.os, "cpu_count", lambda: 2)
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    placement = dataclasses.replace(launch.find_placement("cpu", env=env), launcher=launcher)
    args = options.get_parser().parse_args([])
    args.device, args.strategy = "cpu", "ddp"
    sampler = torch.utils.data.DistributedSampler(data.ImageSet("synthetic", torch.zeros(2), torch.zeros(2)), 2, 0)
    run_log.describe(args, placement, sampler, run_log.RunLog(None))
    assert ("2 ranks share 1 cores" in caplog.text) == warned


def test_ranks_of_an_mpirun_that_find_left_over_variables_are_refused():
    with pytest.raises(files.Refused, match="each found RANK 0 and WORLD_SIZE 1"):
        launch.find_placement("cpu", env={**MPI["Open MPI"], **MEET, "RANK": "0", "WORLD_SIZE": "1"})


@pytest.mark.parametrize(("name", "step", "launcher"), [
    ("bash", {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}, "python"),
    ("bash", {"SLURM_STEP_ID": "1"}, "srun"),  # typed in such a shell: srun python main.py
    ("train", {}, "srun"),
])
def test_a_step_of_one_task_is_one_process_and_srun_in_a_shell_makes_ranks(name, step, launcher):
    assert launch.find_placement("cpu", env={**STEP, "SLURM_JOB_NAME": name, **step}).launcher == launcher


@pytest.mark.weekly
def test_ranks_of_torchrun_meet_at_a_dist_url():
    url = f"tcp://127.0.0.1:{rendezvous.free_port()}"
    done = runner.torchrun(2, *SMALL, "--timeout", 30, "--dist-url", url)
    assert done.returncode == 0 and "2 rank(s) x batch 64" in done.stderr, done.stderr


def test_a_torchrun_that_cannot_serve_tcp_is_refused(monkeypatch):
    """https://github.com/pytorch/pytorch/pull/192113: all ranks would wait for a store that none opens."""
    args = options.get_parser().parse_args(["--dist-url", "tcp://127.0.0.1:29500", "--dataset", "synthetic"])
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "none")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.13.1"))
    with pytest.raises(ValueError, match="does not work under torchrun before"):
        options.resolve(args)
