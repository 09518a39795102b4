"""main.py's training loop under Lightning Fabric: the same model, data, order of images, optimizer and run log.

    python scripts/fabric_loop.py --epochs 2
    torchrun --nproc_per_node=2 scripts/fabric_loop.py --epochs 2 --log-file results/live/fabric.jsonl

Process group, device, DDP and backward are Fabric's, with its defaults; the rest is main.py's. It takes main.py's
options, except those that Fabric decides: --strategy, --backend, --dist-url, --sync-bn.
Fabric comes with `pip install -r requirements-optional.txt`. scripts/benchmark.py compares the two.
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the repository root
import main as course
import options
import utils
from scripts import framework_run


def train_one_epoch(fabric, model, loader, optimizer):
    """main.train_one_epoch, with Fabric's backward and all-reduce."""
    model.train()
    sums = torch.zeros(3, dtype=torch.float64, device=fabric.device)
    timer = utils.PhaseTimer(fabric.device)
    for images, labels in loader:
        timer.mark("data")
        logits = model(images)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        sums += course.count(logits, labels, loss)
        timer.mark("forward")
        optimizer.zero_grad()
        fabric.backward(loss)
        timer.mark("backward")
        optimizer.step()
        timer.mark("update")
    seconds = timer.totals()
    return fabric.all_reduce(sums, reduce_op="sum").tolist(), seconds


def train(args, here, run_log):
    from lightning_fabric import Fabric, __version__
    from lightning_fabric.strategies import DDPStrategy

    strategy = DDPStrategy(timeout=timedelta(seconds=args.timeout)) if args.strategy == "ddp" else "auto"
    fabric = Fabric(accelerator=args.device, strategy=strategy, devices=here.local_world_size, num_nodes=here.nodes)
    fabric.launch()
    torch.set_num_threads(utils.threads_per_rank(here))
    torch.manual_seed(args.seed)
    train_set, test_set = course.load_data(args, here)
    info = utils.DATASETS[train_set.name]
    raw_model = utils.MODELS[args.model](info.shape[0], len(info.classes), info.shape[1]).to(fabric.device)
    optimizer = course.make_optimizer(raw_model.parameters(), args)
    model, optimizer = fabric.setup(raw_model, optimizer)
    sampler = DistributedSampler(train_set, here.world_size, here.rank, shuffle=args.shuffle, seed=args.seed)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, collate_fn=train_set.collate)
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)  # it has one
    args.framework = f"lightning-fabric {__version__}"
    options.describe(args, here, train_set, sampler, run_log)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        sums, seconds = train_one_epoch(fabric, model, loader, optimizer)
        course.end_epoch(epoch, sums, seconds, raw_model, test_set, here, run_log)
    if args.save_model and here.rank == 0:
        course.save_model(raw_model, args.save_model)


@record
def main():
    framework_run.run(train, __doc__, "lightning_fabric")


if __name__ == "__main__":
    main()
    utils.exit_now()
