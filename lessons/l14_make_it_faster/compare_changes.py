"""Train with one change at a time, in turns with the same training without it. Notebook 14 draws what each gains.

    python lessons/l14_make_it_faster/compare_changes.py --out results/live/14_one.json
    torchrun --nproc_per_node=2 lessons/l14_make_it_faster/compare_changes.py --model lenet wide --out \\
        results/live/14_ranks.json
    python lessons/l14_make_it_faster/compare_changes.py --change bf16 --change-file results/live/14_change.py \\
        --model resnet --device cuda --out gpu.json

A change is a pair: before and after. Both train from the same first weights on the same images, a block each in turns:
A B, B A, A B ... A gain is the seconds an image takes before, divided by those after the change, on the slowest rank.
`nothing`, the control, comes first and compares main.py's training with itself. The verdict compares a change's gains
with the control's, round by round (course/compare.py). --change-file and --hook-file measure a learner's function; ours
takes its place where there is no such file, or only a stub in it. A trial, with --seconds below 1, shows that the
program runs; do not quote its gains. The file is one JSON object: the machine, and `models`, {model: {change: {text,
gains (one for each round), losses, ...}}}.
"""

import itertools
import logging
import os
import tempfile
from dataclasses import asdict, replace
from functools import partial

import torch

from course import rank_program, shortcuts
from course.adjustable_training import ALONE, CHANGES, MODELS, TOGETHER, Change, Setting, Training
from course.on_ranks import theirs_or_ours
from course.timing import interleave, slowest, timed
from lessons.l14_make_it_faster import gains
from lessons.l14_make_it_faster.solution import my_change, my_hook
from trainer import launch
from trainer.files import check_output
from trainer.options import nonempty_path, positive

FEWEST = 3  # rounds
JUDGED = 1000  # test images for the loss after the rounds
TRIAL = 64  # of these, and images that each rank trains on in a block, in a trial: --seconds below 1

# ---------------------------------------------------------------------------------------------- a comparison


def compare(change, model, sets, args, placement):
    """A change against no change: gains of each round, and what it did to gradient and loss."""
    train_set, test_set = sets
    settings = [replace(Setting(), **values) for values in (change.before, change.after)]
    pair = [Training(setting, model, train_set, placement) for setting in settings]
    later = []
    for training in pair:
        if change.act and training is pair[1]:
            change.act(training)
            training.scheduler = torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda step: 1)
        torch.set_num_threads(training.setting.threads)
        training.update()  # it brings libraries in, and compiles
        # DDP orders its buckets anew after the first backward, PowerSGD begins with the third
        later.append(timed(training.update, 2, placement.device) / training.setting.images_an_update)
        images = training.sums[2].item() / 3
        if images != training.setting.images_an_update:
            raise ValueError(f"an update saw {images:g} images, not {training.setting.images_an_update}")
    block = TRIAL if args.seconds < 1 else round(args.seconds / args.rounds / sum(slowest(later)))  # as on all ranks
    before, after = map(slowest, interleave(
        {which: partial(training.block, block) for which, training in enumerate(pair)}, args.rounds).values())
    measured = {"text": change.text, "before": change.before, "after": change.after, "images_a_block": block,
                "gains": [old / new for old, new in zip(before, after, strict=True)]}
    if pair[0].setting.images_an_update == pair[1].setting.images_an_update:  # else the gradients are of other images
        which = pair[1].setting.exact_updates
        old, new = (training.gradients[which] for training in pair)
        measured["gradient_off"] = ((new - old).norm() / old.norm()).item()
        measured["losses"] = [training.loss(test_set) for training in pair]
    return measured


def compared(change, *arguments):
    """What `compare` measured. Without a C++ compiler, or where a learner's change fails, {text, error}: a finding."""
    try:
        return compare(change, *arguments)
    except Exception as error:
        if not (change.act or change.after.get("compile")):
            raise
        return {"text": change.text, "error": plain(error)}


def plain(error):
    """The line of an error that says what is wrong, such as a missing compiler; no paths of this machine."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "/" not in line]
    telling = [line for line in lines if "ompiler" in line] or lines or [""]
    return f"{type(error).__name__}: {telling[0][:200]}".removesuffix(": ")


def said(measured, nothing):
    """The gain of a change and its verdict, in words."""
    if "error" in measured:
        return f"did not run: {measured['error']}"
    gain = gains.against(measured, nothing)
    verdict = "this is the control" if measured is nothing else gains.verdict(gain)
    return f"{gain.median:.2f} times as fast ({gain.low:.2f} to {gain.high:.2f}): {verdict}"


def check(args, placement):
    """ValueError, one line, for what cannot work; before any rank waits for another."""
    written = args.change_file or args.hook_file
    args.change = args.change or ([] if written else ALONE if placement.world_size == 1 else TOGETHER)
    args.change = ["nothing", *(name for name in args.change if name != "nothing")]  # first: it is the others' noise
    of_ddp = [name for name in args.change if CHANGES[name].ranks]
    if placement.world_size == 1 and of_ddp:
        raise ValueError(f"--change {of_ddp[0]} is DDP's: start two ranks or more, torchrun --nproc_per_node=2 "
                         "lessons/l14_make_it_faster/compare_changes.py")
    if placement.world_size == 1 and args.hook_file:
        raise ValueError("--hook-file has a hook of DDP's messages: start two ranks or more, as above")
    if placement.world_size > 1 and "compile" in args.change:
        raise ValueError("--change compile is compared in one process: start this with python alone")
    if args.rounds < FEWEST:
        raise ValueError(f"--rounds {args.rounds} tells nothing of the spread: take {FEWEST} or more")
    check_output("--out", args.out)


def theirs(args):
    """{name: Change} of the learner's functions, or of ours in their place. ValueError if a file cannot be run."""
    made = {}
    if args.change_file:
        act, whose = theirs_or_ours(args.change_file, "my_change", my_change)
        made["my_change"] = Change(f"{whose}: my_change", act=act)
    if args.hook_file:
        hook, whose = theirs_or_ours(args.hook_file, "my_hook", my_hook)
        made["my_hook"] = Change(f"{whose}: my_hook", act=lambda each: each.model.register_comm_hook(None, hook))
    return made


def main():
    parser = rank_program.parser(__doc__, out="write the gains to this file, as JSON", dataset=True, timeout=60)
    add = parser.add_argument
    add("--change", nargs="+", choices=CHANGES, metavar="NAME",
        help=f"one or more of: {', '.join(CHANGES)}; default: all that make sense for one process, or for several")
    add("--change-file", type=nonempty_path, metavar="FILE", help="measure my_change(training) of this file, too")
    add("--hook-file", type=nonempty_path, metavar="FILE",
        help="measure my_hook(state, bucket) of this file, too, a communication hook of DDP")
    add("--model", nargs="+", choices=MODELS, default=["lenet"], help="wide: three large fully connected layers")
    add("--rounds", type=positive(int), default=7, help="times that each change is compared: 3 or more, "
        "6 or more for a verdict; default: 7")
    add("--seconds", type=positive(float), default=4, help="that a comparison takes, about; below 1 it is a "
        "trial, with fewer images; default: 4")
    add("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu, so that everybody sees the same")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement(args.device)
        check(args, placement)
        changes = {name: CHANGES[name] for name in args.change} | theirs(args)
        train_set, test_set = rank_program.dataset(args)
    if "compile" not in args.change and not args.change_file:  # which may compile
        shortcuts.defer_compiler()
    if placement.device.type == "cpu":
        shortcuts.keep_memory()  # as main.py
    torch.set_num_threads(Setting.threads)
    judged = JUDGED if args.seconds >= 1 else TRIAL
    sets = train_set.first(len(train_set), placement.device), test_set.first(judged, placement.device)
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it misses CUDA, which nobody asked for
    with tempfile.TemporaryDirectory() as cache, rank_program.ranks(placement, args.timeout):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # else a second start finds what the first has compiled
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # more are processes of their own
        measured = {**rank_program.measured_on(placement), "dataset": train_set.name,
                    "rounds": args.rounds, "setting": asdict(Setting()), "models": {model: {} for model in args.model}}
        for model, (which, change) in itertools.product(args.model, changes.items()):
            of_model = measured["models"][model]
            of_model[which] = compared(change, model, sets, args, placement)
            if placement.rank == 0:
                print(f"{model:8}{change.text:42}{said(of_model[which], of_model['nothing'])}", flush=True)
        if placement.rank == 0:
            rank_program.write_json(args.out, measured)


if __name__ == "__main__":
    rank_program.start(main)
