"""Every program under scripts/ that has options: a number that is none, or a path that cannot be, is refused in one
line, status 2, and nothing is left. What the options are is asked of the programs' own parsers."""

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
from pathlib import Path

import pytest

import options
from tests import runner

BAD = {"number": ["nan", "-1", "x", ""], "path": ["", "fifo", "/dev/zero", "x" * 300]}
ANSWERS = {"--kill": "1@1", "logs": str(runner.ROOT / "results/recorded/two-cpu-cores")}  # to what else must be given
PROGRAMS = sorted(path.relative_to(runner.ROOT) for path in runner.ROOT.glob("scripts/**/*.py")
                  if "rank_program.parser(" in path.read_text())


class Asked(Exception):
    """Stands in for parse_args, and holds the parser."""


def parser_of(module):
    def ask(parser, *_):
        raise Asked(parser)

    parse_args, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, ask
    try:
        module.main()
    except Asked as asked:
        return asked.args[0]
    finally:
        argparse.ArgumentParser.parse_args = parse_args


def kind(action):
    """"number", "path" or None, of an option."""
    if action.type in (int, float, options.from_zero) or "positive" in getattr(action.type, "__qualname__", ""):
        return "number"
    if action.type is options.nonempty_path or action.dest == "save_model":
        return "path"
    return None


def cases(parser):
    named = [action for action in parser._actions if action.option_strings]
    placed = [ANSWERS.get(action.dest) or [*(action.choices or []), "true"][0] for action in parser._actions
              if not action.option_strings and action.nargs not in ("*", "?")]
    for action in named:
        others = [word for other in named if other.required and other is not action for word in (
            other.option_strings[0], ANSWERS.get(other.option_strings[0]) or [*(other.choices or []), "found.json"][0])]
        for value in BAD.get(kind(action), ()):
            yield [*others, f"{action.option_strings[0]}={value}", *placed]


def too_long(*_):
    raise TimeoutError


def refuse(name):
    """In a process of its own, in an empty folder: print each case that is not refused as it should be."""
    module, here = importlib.import_module(".".join(Path(name).with_suffix("").parts)), Path.cwd()
    os.mkfifo("fifo")
    signal.signal(signal.SIGALRM, too_long)
    for argv in (tried := list(cases(parser_of(module)))):
        os.chdir(here)
        said = io.StringIO()
        sys.argv, status = [name, *argv], 0
        try:
            signal.alarm(10)  # what was accepted goes to work
            with contextlib.redirect_stderr(said):
                module.main()
        except SystemExit as end:
            status = end.code
        except TimeoutError:
            status = "accepted"
        finally:
            signal.alarm(0)
        left = sorted(path.name for path in here.rglob("*") if not path.is_dir())
        if status != 2 or len(said.getvalue().splitlines()) != 1 or left != ["fifo"]:
            print(" ".join(argv)[:100], status, said.getvalue()[-200:].splitlines(), left)
    print(len(tried), "cases")


@pytest.mark.promise("one line")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_what_cannot_be_is_refused_in_one_line(program, tmp_path):
    script = tmp_path / "refuse.py"
    script.write_text(f"import os, sys\nsys.path[:0] = [{str(runner.ROOT / 'tests')!r}, {str(runner.ROOT)!r}]\n"
                      f"os.mkdir({str(tmp_path / 'here')!r})\nos.chdir({str(tmp_path / 'here')!r})\n"
                      f"import test_scripts\ntest_scripts.refuse({str(program)!r})\n")
    done = runner.run(0, script=script)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1, done.stdout
