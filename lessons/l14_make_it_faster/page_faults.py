"""What does it cost to take memory from the system anew in each step? main.py's training with and without keeping it.

    python lessons/l14_make_it_faster/page_faults.py --out results/live/14_pages.json

Two processes, one thread each, train the same model in turns: A B, B A, A B ... One calls shortcuts.keep_memory(), as
main.py does; in the other the C library gives freed memory back as it likes. Memory that comes back is mapped and
cleared by the system, a page at a time: a page fault each. The file is one JSON object: the machine, and `models`,
{model: {gain, low, high, quartiles, returned: {...}, kept: {...}}}, each with `seconds` and page `faults` a step, the
`system` share of the time (0 to 1), and the bytes `resident` between two steps; `can_keep` is false where the C library
has no such setting.
"""

import multiprocessing
import resource
import signal
import statistics
import sys
import time
from contextlib import suppress
from functools import partial

import psutil
import torch

import data
import launch
import models
import shortcuts
from course import rank_program
from course.adjustable_training import Setting, Training
from course.timing import interleave
from files import check_output
from lessons.l14_make_it_faster.compare_changes import FEWEST, summary
from options import positive

WAYS = ["returned", "kept"]
WARM_UP = 5  # steps: they bring libraries in, and show the C library how much memory a step takes
TIMEOUT = 120  # seconds: the longest wait for a process


def train(pipe, way, dataset, data_path):
    """A process that trains. Sent the name of a model, it begins with that; sent a number, it makes so many steps."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the one that asks ends this one
    torch.set_num_threads(1)
    train_set = data.get_dataset(dataset, data_path, verify=False)[0].first(4096)
    if way == "kept":
        shortcuts.keep_memory()
    shortcuts.defer_compiler()
    placement, training = launch.find_placement("cpu", env={}), None
    with suppress(EOFError, ConnectionError):  # whoever asks has ended, and said why
        while asked := pipe.recv():
            if isinstance(asked, str):
                training = Training(Setting(), asked, train_set, placement)
            steps = WARM_UP if isinstance(asked, str) else asked
            before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            for _ in range(steps):
                training.update()
            seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
            pipe.send({"seconds": seconds / steps, "faults": (after.ru_minflt - before.ru_minflt) / steps,
                       "system": (after.ru_stime - before.ru_stime) / seconds,
                       "resident": psutil.Process().memory_info().rss})


def ask(way, pipe, question):
    """The process's answer. If the process has ended, or is silent for TIMEOUT seconds, end this program with a line
    that says so."""
    try:
        pipe.send(question)
        if pipe.poll(TIMEOUT):
            return pipe.recv()
    except (EOFError, ConnectionError):
        sys.exit(f"page_faults: the process with memory {way} has ended")
    sys.exit(f"page_faults: waited {TIMEOUT:g} s for the process with memory {way}")


def compare(pipes, model, args):
    """Both ways of one model, in turns."""
    for way, pipe in pipes.items():
        ask(way, pipe, model)
    rounds = interleave({way: partial(ask, way, pipe, args.steps) for way, pipe in pipes.items()}, args.rounds)
    return {**summary([returned["seconds"] / kept["seconds"] for returned, kept in zip(*rounds.values(), strict=True)]),
            **{way: {what: statistics.median(block[what] for block in blocks) for what in blocks[0]}
               for way, blocks in rounds.items()}}


def main():
    parser = rank_program.parser(__doc__, out="write the figures to this file, as JSON", dataset=True)
    add = parser.add_argument
    add("--model", nargs="+", choices=models.MODELS, default=list(models.MODELS), help="default: all")
    add("--rounds", type=positive(int), default=7, help="times that both are measured, 3 or more; default: 7")
    add("--steps", type=positive(int), default=10, help="in a block; default: 10")
    args = parser.parse_args()
    with parser.one_line():
        if args.rounds < FEWEST:
            raise ValueError(f"--rounds {args.rounds} tells nothing of the spread: take {FEWEST} or more")
        check_output("--out", args.out)
        dataset = rank_program.dataset(args)[0].name  # the processes load it themselves
    spawn, pipes = multiprocessing.get_context("spawn"), {}
    for way in WAYS:
        pipes[way], theirs = spawn.Pipe()
        process = spawn.Process(target=train, args=(theirs, way, dataset, args.data_path), daemon=True)
        process.start()  # a daemon ends with this process
        theirs.close()  # the child has it: its end is then heard here
    measured = {**rank_program.measured_on(launch.find_placement("cpu", env={})), "threads": 1, "dataset": dataset,
                "can_keep": shortcuts.keep_memory(), "models": {}}
    for model in args.model:
        measured["models"][model] = ways = compare(pipes, model, args)
        for way in WAYS:
            step = ways[way]
            print(f"{model:8}memory {way:10}{1e3 * step['seconds']:8.2f} ms a step, {step['faults']:6.0f} page faults, "
                  f"{step['system']:4.0%} of the time in the system, {step['resident'] / 2**20:5.0f} MiB held")
        print(f"{model:8}kept: {ways['gain']:.2f} times as fast ({ways['low']:.2f} to {ways['high']:.2f})", flush=True)
    rank_program.write_json(args.out, measured)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
