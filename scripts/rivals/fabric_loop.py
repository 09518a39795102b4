"""main.py's training loop under Lightning Fabric: the same model, data, order of images, optimizer and run log.

    python scripts/rivals/fabric_loop.py --epochs 2
    torchrun --nproc_per_node=2 scripts/rivals/fabric_loop.py --epochs 2 --log-file results/live/fabric.jsonl

Process group, device, DDP and backward are Fabric's, with its defaults; the rest is main.py's. It takes main.py's
options, except those that Fabric decides: --strategy, --backend, --dist-url, --sync-bn.
Fabric comes with `pip install -e '.[rivals]'`. scripts/measure/benchmark.py compares the two.
"""

from datetime import timedelta

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import checkpoint
import data
import models
import utils
from course import framework_run, rank_program


def train(args, here, run):
    from lightning_fabric import Fabric, __version__
    from lightning_fabric.strategies import DDPStrategy

    strategy = DDPStrategy(timeout=timedelta(seconds=args.timeout)) if args.strategy == "ddp" else "auto"
    fabric = Fabric(accelerator=args.device, strategy=strategy, devices=here.local_world_size, num_nodes=here.nodes)
    fabric.launch()
    torch.manual_seed(args.seed)
    train_set, test_set = data.load(args, here)
    raw_model = models.make_model(args, train_set, fabric.device)
    model, optimizer = fabric.setup(raw_model, utils.make_optimizer(raw_model.parameters(), args))
    sampler = DistributedSampler(train_set, here.world_size, here.rank, shuffle=args.shuffle, seed=args.seed)
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, collate_fn=train_set.collate)
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)  # it has one
    args.framework = f"lightning-fabric {__version__}"

    for epoch in run.epochs(loader, model, raw_model, optimizer, scheduler=None):
        sampler.set_epoch(epoch)
        model.train()
        for ((images, labels),) in run.steps(loader):
            images, labels = images.to(fabric.device), labels.to(fabric.device)
            logits = model(images)
            loss = cross_entropy(logits, labels)
            run.forward_done(logits, labels, loss)
            optimizer.zero_grad()
            fabric.backward(loss)
            run.backward_done()
            optimizer.step()
        run.end_epoch(*utils.evaluate(raw_model, test_set, here))
    if args.save_model and here.rank == 0:
        checkpoint.save_model(raw_model, args.save_model)


if __name__ == "__main__":
    rank_program.start(framework_run.run, train, __doc__, "lightning_fabric")
