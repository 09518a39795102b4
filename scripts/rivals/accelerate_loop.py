"""main.py's training loop under Hugging Face Accelerate: the same model, data, order of images, optimizer and run log.

    python scripts/rivals/accelerate_loop.py --epochs 2
    torchrun --nproc_per_node=2 scripts/rivals/accelerate_loop.py --epochs 2 --log-file results/live/accelerate.jsonl

Process group, device, DDP and backward are Accelerate's, with its defaults; the rest is main.py's. It takes main.py's
options, except those that Accelerate decides: --strategy, --backend, --dist-url, --sync-bn.
Accelerate comes with `pip install -e '.[rivals]'`. scripts/measure/benchmark.py compares the two.
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
    from accelerate import Accelerator, __version__
    from accelerate.utils import InitProcessGroupKwargs

    group = InitProcessGroupKwargs(backend=here.backend, timeout=timedelta(seconds=args.timeout))
    accelerator = Accelerator(cpu=args.device == "cpu", kwargs_handlers=[group] if args.strategy == "ddp" else [])
    torch.manual_seed(args.seed)
    train_set, test_set = data.load(args, here)
    raw_model = models.make_model(args, train_set, accelerator.device)
    model, optimizer = accelerator.prepare(raw_model, utils.make_optimizer(raw_model.parameters(), args))
    sampler = DistributedSampler(train_set, here.world_size, here.rank, shuffle=args.shuffle, seed=args.seed)
    # not prepared: the sampler shares the images out already
    loader = DataLoader(train_set, args.batch_size, sampler=sampler, collate_fn=train_set.collate)
    args.framework = f"accelerate {__version__}"

    for epoch in run.epochs(loader, model, raw_model, optimizer, scheduler=None):
        sampler.set_epoch(epoch)
        model.train()
        for ((images, labels),) in run.steps(loader):
            images, labels = images.to(accelerator.device), labels.to(accelerator.device)
            logits = model(images)
            loss = cross_entropy(logits, labels)
            run.forward_done(logits, labels, loss)
            optimizer.zero_grad()
            accelerator.backward(loss)
            run.backward_done()
            optimizer.step()
        run.end_epoch(*utils.evaluate(raw_model, test_set, here))
    if args.save_model and here.rank == 0:
        checkpoint.save_model(raw_model, args.save_model)


if __name__ == "__main__":
    rank_program.start(framework_run.run, train, __doc__, "accelerate")
