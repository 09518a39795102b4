"""How many tokens per second do the ranks reach, beside one process, on networks of chosen speeds?

    torchrun --nproc_per_node=2 lessons/l16_language_model/token_speed.py --program mine/gpt_ranks.py \\
        --rates 20mbit 300mbit none --out results/live/16_speed.json

`train(args)` of the program, on all ranks, and that of text_a.py, on rank 0 alone while the others wait, take turns. A
round is a whole training of --updates updates; its first is not timed, in which DDP makes its buckets. A rate is that
of course/dial.py; none: no limit.

The file is one JSON object: the machine; `parameters`; `tokens` of an update; `rounds`, {rate: {"one process" or
"ranks": [seconds per update, of the slowest rank]}}.
"""

import io
import time
from contextlib import redirect_stdout
from functools import partial

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from course import dial, rank_program, shortcuts
from course.rank_program import meet
from course.timing import slowest
from examples import minimal_gpt
from lessons.l16_language_model import text_a
from trainer import files, launch
from trainer.options import positive

CPU = torch.device("cpu")


def seconds_per_update(train, args, works):
    """Of a training from the end of its first update to that of its last; 0 on a rank that waits."""
    ends = []
    hook = register_optimizer_step_post_hook(lambda *_: ends.append(time.perf_counter()))
    meet(CPU)
    if works:
        with redirect_stdout(io.StringIO()):
            train(args)
    meet(CPU)
    hook.remove()
    return (ends[-1] - ends[0]) / (len(ends) - 1) if ends else 0.0


def measure(args, of_gpt):
    programs = {"one process": partial(seconds_per_update, text_a.train, of_gpt, dist.get_rank() == 0),
                "ranks": partial(seconds_per_update, args.train, of_gpt, True)}
    rounds = {rate: {way: slowest(seconds) for way, seconds in each.items()}
              for rate, each in dial.rounds(args.rates, programs, args.rounds).items()}
    model = minimal_gpt.GPT(of_gpt.context, of_gpt.width, of_gpt.layers)
    return {"parameters": sum(each.numel() for each in model.parameters()),
            "tokens": of_gpt.batch * of_gpt.context, "rounds": rounds}


def main():
    parser = rank_program.parser(__doc__, out="write what was measured to this file, as JSON", timeout=60)
    parser.add_argument("--program", required=True, metavar="FILE.py", help="with train(args), as the exam asks for it")
    parser.add_argument("--rates", nargs="+", default=["none"], metavar="RATE", help="such as 300mbit; none: no limit")
    parser.add_argument("--rounds", type=positive(int), default=9, help="of each way (%(default)s)")
    parser.add_argument("--updates", type=positive(int), default=4, help="of a round (%(default)s)")
    args = parser.parse_args()
    with parser.one_line():
        placement = launch.find_placement("cpu", "gloo")
        if placement.world_size < 2 or args.updates < 2:
            raise ValueError("this compares ranks over at least 2 updates: start torchrun --nproc_per_node=2")
        dial.check_rates(args.rates)
        files.check_output("--out", args.out)
        args.train = files.from_file(f"{args.program}:train")
    of_gpt = minimal_gpt.options().parse_args(  # a short text: its validation is no part of the times
        ["--text=LICENSE", f"--updates={args.updates}", f"--report={args.updates}", "--write=1", "--accumulate=1"])
    of_gpt.fsdp = False
    torch.set_num_threads(1)
    with rank_program.ranks(placement, args.timeout):
        shortcuts.defer_compiler()
        results = measure(args, of_gpt)
    if placement.rank == 0:
        rank_program.write_json(args.out, rank_program.measured_on(placement) | results)


if __name__ == "__main__":
    rank_program.start(main)
