"""The models, and who a process is by what its launcher sets: no process is started here."""

from types import MappingProxyType

import pytest
import torch

import utils
from course import rank_program, shortcuts
from trainer import data, launch, models

STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "7", "SLURM_LOCALID": "1",
        "SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_STEP_NUM_NODES": "4",
        "SLURM_STEP_NODELIST": "gpu-[007-009,12]",
        "SLURM_JOB_ID": "4200001"}


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("dataset", ["cifar10", "mnist"])
def test_models_give_logits_and_every_weight_a_gradient(name, dataset):
    channels, size, _ = data.DATASETS[dataset].shape
    torch.manual_seed(0)
    model = models.MODELS[name](channels, 10, size)
    logits = model(torch.randn(8, channels, size, size))
    assert logits.shape == (8, 10)
    assert not torch.allclose(logits.sum(1), torch.ones(8)), "these are probabilities"
    torch.nn.functional.cross_entropy(logits, torch.arange(8)).backward()
    assert all(p.grad.abs().max() > 0 for p in model.parameters())


def test_plain_python_is_one_process():
    here = launch.find_placement("cpu", env={})
    assert (here.rank, here.world_size, here.nodes, here.launcher, here.backend) == (0, 1, 1, "python", "gloo")


def test_a_batch_script_that_calls_python_is_one_process():
    """sbatch sets SLURM_PROCID and SLURM_NTASKS too, but only srun starts all the others."""
    assert launch.find_placement("cpu", env={"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}).world_size == 1


def test_torchrun_on_two_nodes():
    env = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    here = launch.find_placement("cpu", env=env)
    assert (here.rank, here.local_rank, here.nodes, here.launcher) == (3, 1, 2, "torchrun")


def test_slurm_step_on_four_nodes():
    here = launch.find_placement("cpu", env=MappingProxyType(STEP))  # that nobody can write to
    assert (here.rank, here.local_rank, here.world_size, here.local_world_size, here.nodes) == (5, 1, 7, 2, 4)
    assert here.launcher == "srun" and here.meet_at == f"tcp://gpu-007:{20_000 + 16 * 4_200_001 % 12_000}"
    here = launch.find_placement("cpu", env={**STEP, "MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "29500"})
    assert (here.rank, here.meet_at) == (5, "tcp://10.1.1.1:29500")


@pytest.mark.parametrize("missing", sorted(set(STEP) - {"SLURM_STEP_ID"}))
def test_missing_slurm_variable_is_named(missing):
    with pytest.raises(ValueError, match=f"{missing} is not set"):
        launch.find_placement("cpu", env={k: v for k, v in STEP.items() if k != missing})


def see(monkeypatch, kind, count):
    """Let torch see so many accelerators of a kind."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)


def test_a_mac_gpu_is_for_one_process(monkeypatch):
    see(monkeypatch, "mps", 1)
    assert str(launch.find_placement(env={}).device) == "mps:0"
    two = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert str(launch.find_placement(env=two).device) == "cpu"
    with pytest.raises(ValueError, match="--device mps is for one process"):
        launch.find_placement("mps", env=two)
    for alone in ({"env": {}, "ddp": True}, {"env": {"RANK": "0", "WORLD_SIZE": "1"}}):
        assert str(launch.find_placement(**alone).device) == "cpu", "gloo carries nothing that is on Apple's GPUs"
    with pytest.raises(ValueError, match="torch sees no such GPU"):
        launch.find_placement("cuda", env={})


@pytest.mark.parametrize(("visible", "of_node", "own"), [
    (1, 2, True), (2, 4, True),  # --gpu-bind, --gpus-per-task: other GPUs than the other task's
    (2, 2, True),  # both see both, and take one each
    (1, 1, False), (3, 4, True), (1, None, False),
])
def test_slurm_may_show_each_of_two_tasks_its_own_gpus(visible, of_node, own, monkeypatch):
    """What they see and what the node has, as Slurm 22.05 set it; test_slurm.py asks a real one."""
    see(monkeypatch, "cuda", visible)
    told = {} if of_node is None else {"SLURM_GPUS_ON_NODE": str(of_node)}
    here = launch.find_placement(env={**STEP, **told})
    assert (here.backend, str(here.device)) == ("nccl" if own else "gloo", f"cuda:{1 % visible}")
    two = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    here = launch.find_placement(env={**told, "SLURM_GPUS_PER_TASK": "1", **two})
    assert here.backend == ("nccl" if visible > 1 else "gloo"), "a torchrun's ranks all see the same"


@pytest.mark.parametrize(("nodelist", "first"), [("node1", "node1"), ("a3,a4", "a3"), ("n[2,5]", "n2"),
                                                 ("gpu[01-02]-ib,x9", "gpu01-ib"),
                                                 ("rack[1-2]n[07-09]", "rack1n07")])
def test_first_node_of_a_slurm_list(nodelist, first):
    here = launch.find_placement("cpu", env={**STEP, "SLURM_STEP_NODELIST": nodelist})
    assert here.meet_at.startswith(f"tcp://{first}:")


def test_unusable_launcher_environment_is_named():
    with pytest.raises(ValueError, match="WORLD_SIZE is not set"):
        launch.find_placement("cpu", env={"RANK": "0"})
    with pytest.raises(ValueError, match="'four'"):
        launch.find_placement("cpu", env={"RANK": "0", "WORLD_SIZE": "four"})
    for name, wrong in (("SLURM_NODEID", "9"), ("SLURM_NODEID", "-1"), ("SLURM_STEP_NODELIST", ""),
                        ("SLURM_STEP_TASKS_PER_NODE", ""), ("SLURM_GPUS_ON_NODE", "many")):
        with pytest.raises(ValueError, match=f"{name}.*{wrong}" if wrong != "many" else wrong):
            launch.find_placement("cpu", env={**STEP, name: wrong})


@pytest.mark.parametrize(("gpus", "local_ranks", "backend", "device"), [
    (0, 2, "gloo", "cpu"), (4, 4, "nccl", "cuda:3"), (4, 2, "nccl", "cuda:1"), (2, 4, "gloo", "cuda:1"),
])
def test_backend_and_device_by_gpus_and_local_ranks(gpus, local_ranks, backend, device, monkeypatch):
    see(monkeypatch, "cuda", gpus)
    env = {"RANK": str(local_ranks - 1), "WORLD_SIZE": str(local_ranks), "LOCAL_RANK": str(local_ranks - 1),
           "LOCAL_WORLD_SIZE": str(local_ranks)}
    here = launch.find_placement(env=env)
    assert (here.backend, str(here.device)) == (backend, device)
    if gpus < local_ranks:
        with pytest.raises(ValueError, match="--backend nccl needs a GPU for each"):
            launch.find_placement(backend="nccl", env=env)


def test_nccl_can_be_asked_for_where_each_rank_is_shown_one_gpu(monkeypatch):
    see(monkeypatch, "cuda", 1)
    env = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "CUDA_VISIBLE_DEVICES": "1"}
    assert launch.find_placement(env=env).backend == "gloo", "the GPU may be everybody's"
    placement = launch.find_placement(backend="nccl", env=env)
    assert (placement.backend, str(placement.device)) == ("nccl", "cuda:0")


def test_an_accelerator_that_no_option_names_is_left_alone(monkeypatch):
    see(monkeypatch, "xpu", 1)
    assert str(launch.find_placement(env={}).device) == "cpu"


@pytest.mark.parametrize("gpu", [False, True])
def test_a_program_that_used_a_gpu_ends_as_python_does(gpu, monkeypatch):
    ended = []
    monkeypatch.setattr(shortcuts, "exit_now", lambda: ended.append("now"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: gpu)
    rank_program.start(ended.append, "main")
    assert ended == (["main"] if gpu else ["main", "now"])


def test_phase_timer_counts_all_time_once(monkeypatch):
    clock = iter([10.0, 11.0, 13.0, 13.5, 17.5])
    monkeypatch.setattr(utils.time, "perf_counter", lambda: next(clock))
    timer = utils.PhaseTimer(torch.device("cpu"))
    for phase in ("data", "forward", "data", "forward"):
        timer.mark(phase)
    assert timer.totals() == {"data": 1.5, "forward": 6.0}


def test_phase_timer_keeps_no_mark_that_the_gpu_has_passed(monkeypatch):
    """A GPU that is two marks behind, in a second for each."""
    class Event:
        made = 0

        def __init__(self, enable_timing):
            self.number, Event.made = Event.made, Event.made + 1

        def record(self):
            pass

        def query(self):
            return self.number + 2 < Event.made

        def elapsed_time(self, later):
            return 1000 * (later.number - self.number)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    timer = utils.PhaseTimer(torch.device("cuda"), {"data": 5.0})
    for _ in range(1000):
        for phase in ("data", "forward"):
            timer.mark(phase)
            assert len(timer.marks) <= 4
    assert timer.totals() == timer.totals() == {"data": 1005.0, "forward": 1000.0}
