"""The gallery of mistakes: runs what is broken and what is repaired, and says whether each behaves as it should.

    python -m gallery list                        # the mistakes, and what one sees of each
    python -m gallery show set_epoch              # symptom, diagnosis, repair, and the proof that it is gone
    python -m gallery write set_epoch FILE        # the repaired program, to read or to run
    python -m gallery guide                       # writes TROUBLESHOOTING.md and doctor/entries.json

Nothing runs longer than its limit, and no process is left.
Exit status: 0, 1 where something did not behave as it should, 2 for bad input.
"""

import os
import re
import sys
import tempfile
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from course import processes, rank_program
from trainer import options

from . import guide
from .table import ROOT, Entry, read_table

LIMIT = 120  # seconds; the longest wait of a program itself is 7 s, the rest is start-up on a busy machine
ABORTED = "terminate called without an active exception"  # entry 28
ATTEMPTS = 4  # it happened in 1 run of 12 with a DDP model, on two cores with PyTorch 2.14


@dataclass
class Outcome:
    """What a run printed, and how it ended; status None: it was stopped at its limit."""

    status: int | None
    output: str


def run(entry: Entry, form: str) -> Outcome:
    """Run a form, "broken" or "repaired", as its user would."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
           "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
           # a free port for each torchrun, as newer ones take: with 2.10 two of them would ask for the same
           "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:0"}
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            outcome = Outcome(*processes.run_and_read(["bash", "-c", entry.command(form)], LIMIT, folder,
                                                      env=env | {"TMPDIR": folder}, cwd=ROOT))
        if ABORTED not in outcome.output:
            break
    return outcome


def complaints(entry: Entry, broken: Outcome, repaired: Outcome) -> list[str]:
    """What did not behave as it should, a line each; none where all is well."""
    wrong = []
    for form, outcome, fails, shown, not_shown in (
            ("broken", broken, not entry.silent, entry.shows, entry.proof),
            ("repaired", repaired, entry.also_repaired_fails, entry.proof, entry.shows)):
        if outcome.status is None:
            wrong.append(f"{form}: it did not end within {LIMIT} s")
        elif fails != bool(outcome.status) and not (entry.gpu and form == "broken"):
            wrong.append(f"{form}: exit status {outcome.status}")
        if not re.search(shown, outcome.output, re.M):
            wrong.append(f"{form}: {shown!r} is not in its output")
        if re.search(not_shown, outcome.output, re.M):
            wrong.append(f"{form}: {not_shown!r} is in its output")
    return wrong


# ---- show ----------------------------------------------------------------------------------------------------


def clean(line: str) -> str:
    """A line of output without paths of this machine, and without the end of what is very long."""
    line = re.sub(r"^\[rank(\d+)\]:\s*", r"rank \1: ", line.rstrip())
    line = re.sub(r"(?<![\w:/.])(\(python\))?/(?:[\w.+-]+/)+", "…/", line).replace("gallery/", "…/")
    return line if len(line) < 330 else f"{line[:line.rfind(' ', 0, 320)]} …"


def excerpt(output: str, pattern: str) -> list[str]:
    """The lines that match, cleaned, each once."""
    wanted = (clean(line) for line in output.splitlines())
    return list(dict.fromkeys(line for line in wanted if line.strip() and re.search(pattern, line)))


def paint(text, colour):
    return f"\033[{colour}m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def indent(lines):
    for line in lines:
        filled = textwrap.wrap(line, 112, subsequent_indent="    ", break_long_words=False) or [""]
        print(textwrap.indent("\n".join(filled), "    "))


def show(entry: Entry) -> bool:
    """Print symptom, diagnosis, repair and proof; whether all behaved as it should."""
    broken, repaired = run(entry, "broken"), run(entry, "repaired")
    wrong = complaints(entry, broken, repaired)
    print(paint("SYMPTOM", "1;31"), f"$ {entry.command('broken')}")
    indent(excerpt(broken.output, entry.lines))
    print(f"    → exit status {broken.status}" + " (nothing warns you)" * (broken.status == 0))
    print(paint("DIAGNOSIS", "1;34"), textwrap.fill(entry.tool, 105, subsequent_indent="    "))
    if entry.look:
        indent(excerpt(broken.output, entry.look))
    for text in filter(None, (entry.why, entry.gpu)):
        print(textwrap.fill(f"→ {text}", 112, initial_indent="    ", subsequent_indent="      "))
    print(paint("REPAIR", "1;35"), textwrap.fill(entry.repair, 105, subsequent_indent="    "))
    for line in entry.difference():
        print("    " + (paint(line, 31 if line[0] == "-" else 32) if line[0] in "+-" else line))
    print(paint("PROOF", "1;32"), f"$ {entry.command('repaired')}")
    indent(excerpt(repaired.output, entry.lines))
    print(f"    → exit status {repaired.status}")
    for line in wrong:
        print(paint(f"NOT AS EXPECTED: {line}", 31))
    if wrong:
        print(broken.output[-2000:], repaired.output[-2000:], sep="\n----\n")
    return not wrong


# ---- command line --------------------------------------------------------------------------------------------


def do(args, table):
    """The exit status. ValueError for bad input."""
    if args.command == "list":
        for entry in table.values():
            print(f"{entry.name:20} {entry.heading}{' (silent)' * entry.silent}")
            indent([entry.plain])
    elif args.command == "show":
        return not show(table[args.name])
    elif args.command == "write":
        Path(args.file).write_text(table[args.name].text("repaired"), encoding="utf-8")
    else:
        guide.write()
    return 0


def main(arguments=None):
    table = read_table()
    parser = rank_program.parser(__doc__)
    parser.prog = "python -m gallery"
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="the mistakes, and what one sees of each")
    for command, what in (("show", "run both forms of a mistake: symptom, diagnosis, repair, proof"),
                          ("write", "write the repaired program")):
        named = commands.add_parser(command, help=what)
        named.add_argument("name", choices=table, metavar="NAME", help="of `list`")
        if command == "write":
            named.add_argument("file", type=options.nonempty_path, metavar="FILE", help="where to")
    commands.add_parser("guide", help="write TROUBLESHOOTING.md and doctor/entries.json")
    args = parser.parse_args(arguments)
    with rank_program.stoppable(parser), suppress(BrokenPipeError):  # list | head
        return do(args, table)


if __name__ == "__main__":
    sys.exit(main())
