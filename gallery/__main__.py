"""The gallery of mistakes: runs what is broken and what is repaired, and says whether each behaves as it should.

    python -m gallery list                        # the mistakes, and what one sees of each
    python -m gallery show set_epoch              # symptom, diagnosis, repair, and the proof that it is gone
    python -m gallery write set_epoch FILE        # the repaired program, to read or to run
    python -m gallery patient 3                   # lesson 12: one of them without its name; what its user sees
    python -m gallery look 3 '^rank'              # lines of all that it printed
    python -m gallery repair 3                    # the smallest repair, and the proof
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
from dataclasses import dataclass, replace
from pathlib import Path

from course import processes, rank_program
from trainer import options

from . import guide
from .table import ROOT, Entry, read_patients, read_table

LIMIT = 120  # seconds; the longest wait of a program itself is 7 s, the rest is start-up on a busy machine
LOGS = ROOT / "results/live/12_patients"  # what each of lesson 12's patients printed
ABORTED = "terminate called without an active exception"  # entry 28
ATTEMPTS = 4  # it happened in 1 run of 12 with a DDP model, on two cores with PyTorch 2.14


@dataclass
class Outcome:
    """What a run printed, and how it ended; status None: it was stopped at its limit."""

    status: int | None
    output: str


def run(entry: Entry, form: str, limit: float = LIMIT) -> Outcome:
    """Run a form, "broken" or "repaired", as its user would."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
           "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
           # a free port for each torchrun, as newer ones take: with 2.10 two of them would ask for the same
           "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:0"}
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            outcome = Outcome(*processes.run_and_read(["bash", "-c", entry.command(form)], limit, folder,
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


def indent(lines, width=112):
    for line in lines:
        filled = textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=False) or [""]
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
    show_repair(entry, repaired, entry.lines)
    for line in wrong:
        print(paint(f"NOT AS EXPECTED: {line}", 31))
    if wrong:
        print(broken.output[-2000:], repaired.output[-2000:], sep="\n----\n")
    return not wrong


def show_repair(entry, repaired, lines):
    """Print the repair, and what the repaired form prints."""
    print(paint("REPAIR", "1;35"), textwrap.fill(entry.repair, 105, subsequent_indent="    "))
    for line in entry.difference():
        print("    " + (paint(line, 31 if line[0] == "-" else 32) if line[0] in "+-" else line))
    print(paint("PROOF", "1;32"), f"$ {entry.command('repaired')}")
    indent(excerpt(repaired.output, lines))
    print(f"    → exit status {repaired.status}")


# ---- lesson 12's patients: without their names ---------------------------------------------------------------


def blind(entry: Entry, text: str) -> str:
    """Without what the program is called."""
    return re.sub(rf"[^\s\"]*\b{entry.name}\.py", "train.py", text)


def patient(entry: Entry, lines: re.Pattern | None) -> bool:
    """Print the broken form, run it, keep all that it prints, and print what its user sees; with `lines`
    only those. Returns whether one of these lines occurs."""
    entry = replace(entry, env={})  # tools are the learner's to call
    if not lines:
        source = entry.text("broken").splitlines()
        print(*(f"{number:2} {line}".rstrip() for number, line in enumerate(source, 1)), sep="\n", end="\n\n")
    outcome = run(entry, "broken")
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{entry.patient}.{os.getpid()}"
    log.write_text(blind(entry, outcome.output))
    log.replace(LOGS / f"{entry.patient}.txt")  # two notebooks may run at once
    print("$", blind(entry, entry.command("broken")))
    as_expected = look(entry, lines or entry.seen) and (lines or re.search(entry.shows, outcome.output, re.M))
    print(f"    → exit status {outcome.status}")
    return bool(as_expected)


def look(entry: Entry, lines: str | re.Pattern) -> bool:
    """Print those lines of all that a patient has printed; is there one? ValueError where it has not come yet."""
    log = LOGS / f"{entry.patient}.txt"
    if not log.exists():
        raise ValueError(f"patient {entry.patient} has not come yet: run `python -m gallery patient {entry.patient}` "
                         "first")
    matching = excerpt(log.read_text(), lines)
    indent(matching)
    return bool(matching)


def repair(entry: Entry) -> bool:
    """Print the entry, why it is a mistake, its repair, and the proof; is the mistake gone?"""
    repaired = run(entry, "repaired")
    print(f"{entry.heading} ({entry.program})")
    print(textwrap.fill(f"→ {entry.why}", 112, initial_indent="    ", subsequent_indent="      "))
    show_repair(entry, repaired, f"{entry.seen}|{entry.proof}")
    return bool(re.search(entry.proof, repaired.output, re.M))


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
    elif args.command == "guide":
        guide.write()
    elif args.until and args.number > args.until:
        print(f"Patient {args.number} does not come today.")  # the quick tier
    else:
        entry = read_patients()[args.number]
        fine = {"patient": lambda: patient(entry, args.lines), "look": lambda: look(entry, args.lines),
                "repair": lambda: repair(entry)}[args.command]()
        if not fine:
            print("NOT AS EXPECTED: " + ("no such line" if args.command == "look" else "not what this lesson is about"))
        return not fine
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
    for command, what in (("patient", "lesson 12: print a program without its name, and what its user sees"),
                          ("look", "print lines of all that a patient has printed"),
                          ("repair", "show a patient's repair, and run it")):
        numbered = commands.add_parser(command, help=what)
        numbered.add_argument("number", type=int, choices=read_patients(), metavar="NUMBER", help="of the patient")
        numbered.add_argument("--until", type=options.positive(int), help="those with higher numbers do not run")
        if command != "repair":
            numbered.add_argument("lines" if command == "look" else "--lines", metavar="REGEX", type=re.compile,
                                  help="which lines to print")
    commands.add_parser("guide", help="write TROUBLESHOOTING.md and doctor/entries.json")
    args = parser.parse_args(arguments)
    with rank_program.stoppable(parser), suppress(BrokenPipeError):  # list | head
        return do(args, table)


if __name__ == "__main__":
    sys.exit(main())
