"""main.py's training loop under Ray Train: the same model, data, order of images, optimizer and run log.

    python scripts/rivals/ray_loop.py --epochs 2
    python scripts/rivals/ray_loop.py --ranks 8 --epochs 2 --log-file results/live/ray.jsonl

No torchrun: Ray starts the ranks, each on cores or on a GPU that it sets aside for it, and makes their process group.
That and DDP are Ray's, with its defaults; the rest is main.py's (course/framework_run.py). It takes main.py's options,
except those that Ray decides: --strategy, --backend, --dist-url, --sync-bn. The Ray is one of this machine alone, which
ends with the run.
Ray comes with `pip install -e '.[rivals]'`. scripts/measure/benchmark.py says how long it takes to start.
"""


import copy
import dataclasses
import logging
import math
import os
import shutil
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path

from course import framework_run, processes, rank_program
from trainer import launch, options
from trainer.run import Run


def train(config):
    """On each rank. Ray has told it who it is, under torchrun's names, and it is in the process group already."""
    from ray import __version__
    from ray.train.torch import prepare_model

    args = options.Options()
    vars(args).update(config, framework=f"ray {__version__}")
    placement = dataclasses.replace(framework_run.resolve(args), launcher="ray")
    with options.exit_status(), Run(args, placement) as run:
        # The loader is not prepared: the sampler shares the images out already.
        framework_run.train_with(args, placement, run, placement.device,
                                 lambda model, optimizer: (prepare_model(model), optimizer))


def main():
    parser = options.get_parser(__doc__)
    parser.add_argument("--ranks", type=options.positive(int), default=2, help="how many Ray starts")
    args = framework_run.parse(parser, "ray")
    with parser.one_line():
        launcher = launch.find_placement().launcher
        if launcher != "python":
            raise ValueError(f"Ray starts the ranks, and {launcher} has started this: start it with plain python")
        ranks = vars(args).pop("ranks")  # no option of main.py's
        placement = judge(args, ranks)
        for name in ("data_path", "log_file", "save_model"):  # Ray starts the ranks in another folder
            if path := getattr(args, name):
                setattr(args, name, str(Path(path).resolve()))
        gpus = ranks if placement.device.type == "cuda" else 0
        cores = max(1, launch.cores() // ranks)
        # stoppable twice: ray.init takes SIGTERM for itself
        with (rank_program.stoppable(parser), own_ray(ranks * cores, gpus, args.timeout) as folder,
              rank_program.stoppable(parser)):
            from ray.train import FailureConfig, RunConfig, ScalingConfig
            from ray.train.torch import TorchConfig, TorchTrainer

            TorchTrainer(
                train, train_loop_config=vars(args), torch_config=TorchConfig(timeout_s=args.timeout),
                scaling_config=ScalingConfig(
                    num_workers=ranks, use_gpu=gpus > 0, resources_per_worker={"CPU": cores}),
                run_config=RunConfig(  # ranks that cannot be started end the run; Ray would try again, for ever
                    storage_path=folder, failure_config=FailureConfig(controller_failure_limit=0))).fit()


def judge(args, ranks):
    """The launch.Placement of rank 0. ValueError or OSError here, and not half a minute later on a rank."""
    rank_0 = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    os.environ.update(rank_0)
    try:
        return framework_run.resolve(copy.copy(args))  # each rank resolves for itself
    finally:
        for name in rank_0:
            del os.environ[name]


@contextmanager
def own_ray(cores, gpus, timeout):
    """A Ray of this machine alone, for as long as the block runs; yields the folder in which it keeps all its files."""
    mark = uuid.uuid4().hex
    os.environ.update(processes.environment(mark))
    # Ray reads these when it is imported. It sends no report to its makers. Its processes listen on all networks, so a
    # secret keeps others out: of this run alone, or Ray would leave one in the home folder. And nobody takes this
    # machine away: no process need watch for that. Ray would start its processes at a lower priority (nice 15) than
    # torchrun's; on a busy machine they would not be ready within its 60 s, and it would start others, for ever.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=uuid.uuid4().hex,
                      RAY_TRAIN_ENABLE_PREEMPTION_WATCHER="0", RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=str(timeout),
                      RAY_worker_register_timeout_seconds=str(math.ceil(timeout)), RAY_worker_niceness="0")
    import ray

    folder = tempfile.mkdtemp(prefix=f"ray-{os.getpid()}-", dir="/tmp")  # with sockets: their paths must be short
    try:
        ray.init("local", num_cpus=cores, num_gpus=gpus, include_dashboard=False, _temp_dir=folder,
                 runtime_env={"worker_process_setup_hook": quieten})
        yield folder
    finally:
        ray.shutdown()
        processes.end(mark)
        shutil.rmtree(folder)


def quieten():
    """In each process that Ray starts: one of them would ask the dashboard, and say each second that there is none."""
    logging.getLogger("ray.train.v2._internal.execution.controller.placement_group_cleaner").setLevel(logging.ERROR)


if __name__ == "__main__":
    main()
