"""main.py's training loop under Lightning Fabric: the same model, data, order of images, optimizer and run log.

    python scripts/rivals/fabric_loop.py --epochs 2
    torchrun --nproc_per_node=2 scripts/rivals/fabric_loop.py --epochs 2 --log-file results/live/fabric.jsonl

Process group, device, DDP and backward are Fabric's, with its defaults; the rest is main.py's
(course/framework_run.py). It takes main.py's options, except those that Fabric decides: --strategy, --backend,
--dist-url, --sync-bn.
Fabric comes with `pip install -e '.[rivals]'`. scripts/measure/benchmark.py compares the two.
"""

from datetime import timedelta
from functools import partial

from course import framework_run, rank_program


def train(args, placement, run):
    from lightning_fabric import Fabric, __version__
    from lightning_fabric.strategies import DDPStrategy

    strategy = DDPStrategy(timeout=timedelta(seconds=args.timeout)) if args.strategy == "ddp" else "auto"
    fabric = Fabric(accelerator=args.device, strategy=strategy, devices=placement.local_world_size,
                    num_nodes=placement.nodes)
    fabric.launch()
    args.framework = f"lightning-fabric {__version__}"
    framework_run.train_with(args, placement, run, fabric.device, fabric.setup, fabric.backward,
                             partial(fabric.setup_dataloaders, use_distributed_sampler=False))  # it has one


if __name__ == "__main__":
    rank_program.start(framework_run.run, train, __doc__, "lightning_fabric")
