"""main.py's options, loop, log and ending, for the frameworks that it is compared with."""

import importlib.util

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import utils
from trainer import checkpoint, data, models, options
from trainer.run import Run

DECIDED = ["strategy", "backend", "dist_url", "sync_bn", "bucket_cap_mb", "comm_hook", "wrapper"]  # by the framework
LEFT_OUT = ["lr_scaling", "warmup_epochs", "schedule", "accumulate", "clip", "workers", "matmul_precision", "bf16",
            "channels_last", "compile", "checkpoint", "checkpoint_every", "resume"]


def parse(parser, package):
    """main.py's options without those that `package` decides. What is refused ends the program: one line, status 2."""
    args = parser.parse_options()
    for name in DECIDED + LEFT_OUT:
        if getattr(args, name) != parser.get_default(name):
            why = f"{package} decides this" if name in DECIDED else "not part of this comparison"
            parser.error(f"--{name.replace('_', '-')}: {why}; leave it out")
    if not importlib.util.find_spec(package):
        parser.error(f"{package} is not installed: pip install -e '.[rivals]'")
    return args


def resolve(args):
    """options.resolve, without main.py's own choices: the frameworks leave things as they are."""
    placement = options.resolve(args)
    if (placement.device.type, placement.backend) == ("cuda", "gloo"):
        raise ValueError("more ranks than GPUs: use --device cpu")
    args.channels_last = False
    return placement


def run(train, description, package):
    """main.main with a program's own `train(args, placement, run)`, whose process group and DDP are the package's."""
    parser = options.get_parser(description)
    args = parse(parser, package)
    with parser.one_line():
        placement = resolve(args)
        training = Run(args, placement)
    with options.exit_status(), training:
        train(args, placement, training)


def train_with(args, placement, training, device, prepare, backward=torch.Tensor.backward,
               prepare_loader=lambda loader: loader):
    """main.py's loop. The framework's parts: `prepare(model, optimizer)` returns both, wrapped, `backward(loss)`
    averages the gradients, and `prepare_loader(loader)` may wrap the DataLoader, which has its DistributedSampler.
    """
    torch.manual_seed(args.seed)
    train_set, test_set = data.load(args, placement)
    raw_model = models.make_model(args, train_set, device)
    model, optimizer = prepare(raw_model, utils.make_optimizer(raw_model.parameters(), args))
    sampler = DistributedSampler(train_set, placement.world_size, placement.rank, shuffle=args.shuffle, seed=args.seed)
    loader = prepare_loader(DataLoader(train_set, args.batch_size, sampler=sampler, collate_fn=train_set.collate))

    test_loader = utils.shard_loader(test_set, placement)

    training.hold(raw_model, optimizer, None, train_set)
    training.begin(sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        training.begin_epoch()
        for images, labels in loader:
            training.timer.mark("data")
            images, labels = images.to(device), labels.to(device)
            logits = model(images)
            loss = cross_entropy(logits, labels)
            training.forward_done(logits, labels, loss)
            optimizer.zero_grad()
            backward(loss)
            training.timer.mark("backward")
            optimizer.step()
            training.update_done(len(loader))
        training.end_epoch(*utils.evaluate(raw_model, test_loader, placement.device))
    if args.save_model and placement.rank == 0:
        checkpoint.save_model(raw_model, args.save_model)
