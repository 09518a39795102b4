"""What a command means, asked of the parsers that read it: torchrun's own, and any argparse."""

import contextlib
import io
import shlex

from torch.distributed.run import get_args_parser

from course.checks import Wrong


def without_exit(function, *arguments):
    """What the function returns. An argparse that gives up would end the program: here it is Wrong, in its words."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return function(*arguments)
    except SystemExit as end:
        line = (said.getvalue().splitlines() or [f"exit status {end.code}"])[-1]
        raise Wrong(f"{line.partition('error: ')[2] or line}.") from None


def parsed(command):
    """torchrun's own reading of a command for main.py; of `python main.py` that of one process. Raises Wrong.

    by_torchrun: whether it is torchrun's.
    """
    if not isinstance(command, str):
        raise Wrong(f"Return the command as text, in quotes; this is {command!r}.")
    words = shlex.split(command)
    while words and "=" in words[0]:  # OMP_NUM_THREADS=1 torchrun ...
        words.pop(0)
    if words[1:3] == ["-m", "torch.distributed.run"]:
        words[:3] = ["torchrun"]
    if words[:1] != ["torchrun"] and words[:2] != ["python", "main.py"]:
        raise Wrong(f"{command!r} begins with neither `torchrun` nor `python main.py`.")
    try:
        options = without_exit(get_args_parser().parse_args, words[1:])
    except Wrong as wrong:
        raise Wrong(f"torchrun does not understand {command!r}: {wrong} What is main.py's stands after "
                    "main.py.") from None
    if options.training_script != "main.py":
        raise Wrong(f"{command!r} starts {options.training_script}, not main.py. The first word that is no option of "
                    "torchrun is the script.")
    options.by_torchrun = words[0] == "torchrun"
    return options
