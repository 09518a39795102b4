"""What a command means, asked of the parsers that read it: torchrun's own, and any argparse."""

import contextlib
import io
import shlex
from unittest import mock

from torch.distributed import run as torchrun

from course.exercise import Wrong


def without_exit(function, *arguments):
    """What the function returns. An argparse that gives up would end the program: here it is Wrong, in its words."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return function(*arguments)
    except SystemExit as end:
        line = (said.getvalue().splitlines() or [f"exit status {end.code}"])[-1]
        raise Wrong(f"{line.partition('error: ')[2] or line}.") from None


def launch_config(options):
    """The LaunchConfig that `torchrun OPTIONS main.py` would work with. Nothing is started."""
    with mock.patch.object(torchrun, "elastic_launch") as launch:
        torchrun.run(torchrun.parse_args([*options.split(), "main.py"]))
    return launch.call_args.kwargs["config"]


def parsed(command, script="main.py"):
    """torchrun's own reading of a command for the script; of `python main.py` that of one process. Raises Wrong.

    by_torchrun: whether it is torchrun's.
    """
    if not isinstance(command, str):
        raise Wrong(f"Return the command as text, in quotes; this is {command!r}.")
    words = shlex.split(command)
    while words and "=" in words[0]:  # OMP_NUM_THREADS=1 torchrun ...
        words.pop(0)
    if words[1:3] == ["-m", "torch.distributed.run"]:
        words[:3] = ["torchrun"]
    if words[:1] != ["torchrun"] and words[:2] != ["python", script]:
        raise Wrong(f"{command!r} begins with neither `torchrun` nor `python {script}`.")
    try:
        options = without_exit(torchrun.get_args_parser().parse_args, words[1:])
    except Wrong as wrong:
        raise Wrong(f"torchrun does not understand {command!r}: {wrong} What is {script}'s stands after "
                    f"{script}.") from None
    if options.training_script != script:
        raise Wrong(f"{command!r} starts {options.training_script}, not {script}. The first word that is no option of "
                    "torchrun is the script.")
    options.by_torchrun = words[0] == "torchrun"
    return options
