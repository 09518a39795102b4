"""What surrounds the training in the loops of the frameworks beside it: main.py's options, log, ending."""

import importlib.util

import options
from run import Run

DECIDED = ["strategy", "backend", "dist_url", "sync_bn", "bucket_cap_mb", "comm_hook", "wrapper"]  # by the framework
LEFT_OUT = ["lr_scaling", "warmup_epochs", "schedule", "accumulate", "clip", "workers", "matmul_precision", "bf16",
            "channels_last", "compile", "checkpoint", "checkpoint_every", "resume", "shortcuts"]


def parse(parser, package):
    """main.py's options without those that `package` decides. What is refused ends the program: one line, status 2."""
    args = parser.parse_args()
    for name in DECIDED + LEFT_OUT:
        if getattr(args, name) != parser.get_default(name):
            why = f"{package} decides this" if name in DECIDED else "not part of this comparison"
            parser.error(f"--{name.replace('_', '-')}: {why}; leave it out")
    if not importlib.util.find_spec(package):
        parser.error(f"{package} is not installed: pip install -e '.[rivals]'")
    return args


def resolve(args):
    """options.resolve, without main.py's own choices: the frameworks leave things as they are."""
    here = options.resolve(args)
    if (here.device.type, here.backend) == ("cuda", "gloo"):
        raise ValueError("more ranks than GPUs: use --device cpu")
    args.channels_last = args.shortcuts = False
    return here


def run(train, description, package):
    """main.main, for a `train(args, here, run)` whose process group and DDP are those of `package`."""
    parser = options.get_parser(description)
    args = parse(parser, package)
    with parser.one_line():
        here = resolve(args)
        training = Run(args, here)
    with options.exit_status(), training:
        train(args, here, training)
