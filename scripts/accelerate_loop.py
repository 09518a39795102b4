"""main.py's training loop under Hugging Face Accelerate: the same model, data, order of images, optimizer and run log.

    python scripts/accelerate_loop.py --epochs 2
    torchrun --nproc_per_node=2 scripts/accelerate_loop.py --epochs 2 --log-file results/live/accelerate.jsonl

Process group, device, DDP and backward are Accelerate's, with its defaults; the rest is main.py's. It takes main.py's
options, except those that Accelerate decides: --strategy, --backend, --dist-url, --sync-bn.
Accelerate comes with `pip install -r requirements-optional.txt`. scripts/benchmark.py compares the two.
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


def train_one_epoch(accelerator, model, loader, optimizer):
    """main.train_one_epoch, with Accelerate's backward and all-reduce."""
    model.train()
    sums = torch.zeros(3, dtype=torch.float64, device=accelerator.device)
    timer = utils.PhaseTimer(accelerator.device)
    for images, labels in loader:
        timer.mark("data")
        logits = model(images)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        sums += course.count(logits, labels, loss)
        timer.mark("forward")
        optimizer.zero_grad()
        accelerator.backward(loss)
        timer.mark("backward")
        optimizer.step()
        timer.mark("update")
    seconds = timer.totals()
    return accelerator.reduce(sums, reduction="sum").tolist(), seconds


def train(args, here, run_log):
    from accelerate import Accelerator, __version__
    from accelerate.utils import InitProcessGroupKwargs

    group = InitProcessGroupKwargs(backend=here.backend, timeout=timedelta(seconds=args.timeout))
    accelerator = Accelerator(cpu=args.device == "cpu", kwargs_handlers=[group] if args.strategy == "ddp" else [])
    torch.set_num_threads(utils.threads_per_rank(here))
    torch.manual_seed(args.seed)
    train_set, test_set = course.load_data(args, here)
    info = utils.DATASETS[train_set.name]
    raw_model = utils.MODELS[args.model](info.shape[0], len(info.classes), info.shape[1]).to(accelerator.device)
    optimizer = course.make_optimizer(raw_model.parameters(), args)
    model, optimizer = accelerator.prepare(raw_model, optimizer)
    sampler = DistributedSampler(train_set, here.world_size, here.rank, shuffle=args.shuffle, seed=args.seed)
    # not prepared: the sampler shares the images out already, and they are on the device
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, collate_fn=train_set.collate)
    args.framework = f"accelerate {__version__}"
    options.describe(args, here, train_set, sampler, run_log)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        sums, seconds = train_one_epoch(accelerator, model, loader, optimizer)
        course.end_epoch(epoch, sums, seconds, raw_model, test_set, here, run_log)
    if args.save_model and here.rank == 0:
        course.save_model(raw_model, args.save_model)


@record
def main():
    framework_run.run(train, __doc__, "accelerate")


if __name__ == "__main__":
    main()
    utils.exit_now()
