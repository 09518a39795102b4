"""How many bytes of tensors each rank holds, over the time of one update.

    torchrun --nproc_per_node=2 -m course.step_memory --out results/live/memory PROGRAM ARGS…

The program runs, and is ended after its third update. Each allocation and each release of torch counts, as
torch.profiler reports them, from the program's start: parameters, gradients, the optimizer's state, activations,
buckets. Not counted: Python, the copies that gloo keeps, data that was read without torch.

Rank i writes results/live/memory/i.json: {"ms": […], "bytes": […], "spans": [[name, begin ms, end ms]]}. Time 0 is the
end of the update before; `bytes[k]` are held from `ms[k]` on. Spans are "backward" and "update" (optimizer.step()).
"""

import argparse
import json
import os
import runpy
import sys
import time
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler writes lines of its own to stdout

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import ProfilerActivity, profile

from course import rank_program, shortcuts
from trainer import files, options

SETTLE, UPDATES = 0.003, 3  # seconds after a message; with the last one memory no longer grows
BACKWARD = "autograd::engine::evaluate_function"  # how the profiler names each step of a backward


def last_update(events) -> dict:
    """What a rank writes, from the profiler's events, of which the last update is that between the last two ends of an
    optimizer.step()."""
    events = sorted(events, key=lambda event: event.start_ns())
    begin, end = 0, 0  # ns of the profiler's clock
    for event in events:
        if event.name().startswith("Optimizer.step") and event.start_ns() > end:  # else it is inside another
            begin, end = end, event.start_ns() + event.duration_ns()
    held, curve, spans = 0, [], []
    for event in events:
        start, name = event.start_ns(), event.name()
        if start > end:
            break
        if name == "[memory]":
            held += event.nbytes()
            if start < begin:
                curve = [(0, held)]
            else:
                curve.append(((start - begin) / 1e6, held))
        elif start >= begin and name.startswith((BACKWARD, "Optimizer.step")):
            kind = "backward" if name.startswith(BACKWARD) else "update"
            span = [kind, (start - begin) / 1e6, (start - begin + event.duration_ns()) / 1e6]
            if spans and (kind == spans[-1][0] or span[2] <= spans[-1][2]):  # one more of its steps, or inside it
                spans[-1][2] = max(spans[-1][2], span[2])
            else:
                spans.append(span)
    times, sizes = zip(*curve, strict=True)
    return {"ms": times, "bytes": sizes, "spans": spans}


def settle() -> None:
    """Let gloo's threads release a message's tensors before the program goes on. What it no longer holds itself, they
    would release last, and the profiler does not see what threads of others release."""
    wait = dist.Work.wait

    def patient(work, *args, **options):
        done = wait(work, *args, **options)
        time.sleep(SETTLE)
        return done

    dist.Work.wait = patient


def read(folder: str | Path) -> list[dict]:
    """[rank] -> what it wrote."""
    count = len(list(Path(folder).glob("*.json")))
    return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(count)]


def kept(curve: dict) -> int:
    """Bytes between two updates: what is held when the last one has ended."""
    return curve["bytes"][0]


def most(curve: dict) -> int:
    """Bytes at the worst moment of the update."""
    return max(curve["bytes"])


def main() -> None:
    parser = options.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=options.nonempty_path, required=True, help="a folder, for a file per rank")
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="of the program")
    args = parser.parse_args()
    with parser.one_line():
        files.check_input("PROGRAM", args.program)
        Path(args.out).mkdir(parents=True, exist_ok=True)
    path = Path(args.out, f"{os.environ.get('RANK', 0)}.json")
    path.unlink(missing_ok=True)
    for earlier in Path(args.out).glob("*.json"):  # of a run with more ranks
        if earlier.stem.isdecimal() and int(earlier.stem) >= int(os.environ.get("WORLD_SIZE", 1)):
            earlier.unlink(missing_ok=True)
    depth, ends = 0, 0

    def begins(*_):
        nonlocal depth
        depth += 1

    def after(*_):
        nonlocal depth, ends
        depth -= 1
        ends += not depth  # an optimizer inside another is no update of its own
        if ends == UPDATES:
            recorder.__exit__(None, None, None)
            rank_program.write_json(path, last_update(recorder.profiler.kineto_results.events()))
            sys.stdout.write(f"{path}: written\n")  # in one piece, beside those of other ranks
            shortcuts.exit_now()

    sys.argv = [args.program, *args.arguments]
    sys.path.insert(0, str(Path(args.program).resolve().parent))
    register_optimizer_step_pre_hook(begins)
    register_optimizer_step_post_hook(after)
    settle()
    recorder = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    recorder.__enter__()
    runpy.run_path(args.program, run_name="__main__")
    recorder.__exit__(None, None, None)
    sys.exit(f"{args.program} made {ends} updates, and not {UPDATES}.")


if __name__ == "__main__":
    main()
