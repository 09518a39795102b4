"""Executes the notebooks of the course with papermill, and makes the web edition of them. scripts/run starts it.

Executed notebooks go to build/notebooks/, and the pages to build/site/: each is there as soon as its notebook is done.
Exit status: 0 all passed, 1 a notebook failed, 2 bad input, 130 stopped by Ctrl-C.

A notebook says what to expect of it in its metadata:
    {"course": {"seconds": 60, "quick": {"seconds": 20, "parameters": {"epochs": 1}}}}
`seconds` is the expected time on two cores; `parameters` is what papermill sets for the quick tier.
"""

import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from course import rank_program
from course.lesson import ROOT
from trainer import options


def choose(wanted, available):
    """The stems of `available` (sorted) that `wanted` names, as `07`, `07_name` or a path; all of them without names.

    Raises ValueError with a line for the user when a name fits none.
    """
    chosen = set()
    for name in wanted:
        matching = {have for have in available if Path(name).stem in (have, have.split("_")[0])}
        if not matching:
            raise ValueError(f"no notebook {name!r}; there are: {', '.join(available) or 'none'}")
        chosen |= matching
    return sorted(chosen or available)


def parse():
    parser = rank_program.parser(__doc__)
    parser.prog = "scripts/run"
    parser.add_argument("names", nargs="*", metavar="NAME", help="07, 08_performance or its path; default: all")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--quick", action="store_true", help="the quick tier, as the notebook's metadata sets it")
    modes.add_argument("--in-place", action="store_true",
                       help="execute from notebooks/text/ and refresh the committed outputs")
    modes.add_argument("--build", action="store_true",
                       help="build .ipynb from notebooks/text/ and stop; unchanged cells keep outputs")
    parser.add_argument("--others", type=options.positive(float), default=0.05, metavar="CORES",
                        help="with --in-place: run a lesson up to three times, and keep its outputs only where other "
                             "processes and the host took less of the machine meanwhile (default: 0.05)")
    parser.add_argument("--timeout", type=options.positive(int), default=600, metavar="SECONDS",
                        help="longest time a cell may take (default: 600)")
    args = parser.parse_args()
    where = "notebooks/text/*.py" if args.in_place or args.build else "notebooks/*.ipynb"
    course = sorted(path.stem for path in Path().glob(where) if re.match(r"\d\d[a-z]?_", path.name))
    try:
        if not course:
            raise ValueError(f"no {where}; is this a whole clone of the course?")
        args.names = choose(args.names, course)
    except ValueError as problem:
        parser.exit(2, f"scripts/run: {problem}\n")
    return args


def main():
    os.chdir(ROOT)
    args = parse()
    from course import twins
    from scripts import notebook_runs  # late: importing these takes seconds, and bad input is refused at once

    if args.build:
        twins.set_address()
        for name in args.names:
            twins.commit(twins.build(name), name)
            print(f"built {twins.NOTEBOOKS / name}.ipynb")
        return 0

    sys.stdout.reconfigure(errors="replace")  # a notebook's error may hold what this terminal cannot show
    logging.getLogger("papermill").addHandler(logging.NullHandler())  # failures are printed below, once
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stop from outside leaves nothing running either
    notebook_runs.EXECUTED.mkdir(parents=True, exist_ok=True)
    notebook_runs.use_this_python()
    results, site = [], False
    for number, name in enumerate(args.names, 1):
        label = f"[{number}/{len(args.names)}] {name}"
        for _ in range(3):
            result = notebook_runs.execute(name, label, args.quick, args.in_place, args.timeout, args.others)
            if result.status != "noisy":
                break
        results.append(result)
        made = subprocess.run([sys.executable, "site/build_site.py", "--executed"], stdout=subprocess.PIPE, text=True)
        site = site or made.returncode == 0  # a page less is no reason to lose the notebooks
        if results[-1].status == "stopped":
            break

    print()
    for result in results:
        if result.status == "noisy":
            print(f"NOISY {result.name}: {result.error[0]}")
        if result.status == "failed":
            print(f"FAILED {result.name}, cell [{result.cell}]:")
            print("\n".join(f"    {line[:400]}" for line in result.error))
    passed = [result.name for result in results if result.status == "passed"]
    read = f"; read them: {Path('build/site/index.html').resolve().as_uri()}" if site else ""
    print(f"{len(passed)} of {len(args.names)} notebooks passed{read}")
    if results[-1].status == "stopped":
        print(f"Stopped in {results[-1].name}. Passed before: {', '.join(passed) or 'none'}.")
        return 130
    return 0 if len(passed) == len(args.names) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
