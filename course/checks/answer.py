"""Run the functions in a learner's file on ranks, and write down what each rank saw. The checks of the lesson read it.

    torchrun --nproc_per_node=2 course/checks/answer.py --lesson 06 --answer results/live/06_answer.py \
        --out results/live/06_answer.json

Whatever the functions do, it ends with status 0: the checks say what is wrong. It runs on CPUs with gloo.
"""

import faulthandler
import importlib
import runpy
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist

import utils
from course import rank_program
from course.checks.on_ranks import Here, first_line
from options import check_output, nonempty_path, positive


def get_parser():
    parser = rank_program.parser(__doc__, out="write what the ranks saw to this file, as JSON", timeout=20)
    add = parser.add_argument
    add("--lesson", required=True, choices=["03", "04", "06"], help="the notebook's number")
    add("--answer", type=nonempty_path, required=True, help="file of the learner's functions")
    add("--limit", type=positive(float), default=120, help="a rank ends after so many seconds, whatever it does")
    return parser


def look(answers, file, here):
    """{name: what each rank saw, or why the function was not run} of the functions in the file."""
    try:
        functions = runpy.run_path(str(file))
    except Exception as error:  # a bracket forgotten, say: the checks tell it
        return dict.fromkeys(answers.measures, f"Your file cannot be run: {first_line(error)}")
    return answers.look(functions, here)


def main():
    parser = get_parser()
    args = parser.parse_args()
    with parser.one_line():
        here = utils.find_placement("cpu", "gloo")
        if here.world_size < 2:
            raise ValueError("an answer runs on two ranks or more: torchrun --nproc_per_node=2 course/checks/answer.py")
        if not args.answer.is_file():
            raise ValueError(f"--answer {args.answer}: no such file")
        check_output("--out", args.out)
    faulthandler.dump_traceback_later(args.limit, exit=True)  # says where it hangs; works even where Python is stuck
    torch.set_num_threads(1)
    store, *_ = next(dist.rendezvous("env://", timeout=timedelta(seconds=args.timeout)))
    with tempfile.TemporaryDirectory() as folder:
        here = Here(here.rank, here.world_size, store, folder, args.timeout)
        here.folder = here.gather("folder", folder)[0]
        found = look(importlib.import_module(f"course.checks.lesson_{args.lesson}").answers, args.answer, here)
    if here.rank == 0:
        rank_program.write_json(args.out, found)


if __name__ == "__main__":
    rank_program.start(main)
