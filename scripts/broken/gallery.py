"""The gallery of mistakes: runs what is broken and what is repaired, and says whether each behaves as it should.

    python scripts/broken/gallery.py list               # the mistakes, and what one sees of each
    python scripts/broken/gallery.py show set_epoch     # symptom, diagnosis, repair, and the proof that it is gone
    python scripts/broken/gallery.py patient 3          # lesson 12: one of them without its name; what its user sees
    python scripts/broken/gallery.py look 3 '^rank'     # lines of all that it printed
    python scripts/broken/gallery.py repair 3           # the smallest repair, and the proof
    python scripts/broken/gallery.py check              # runs all pairs, and judges them
    python scripts/broken/gallery.py guide              # writes TROUBLESHOOTING.md, and doctor/entries.json

The table is gallery.toml, which lessons/l12_break_it/gallery_table.py reads; the scripts stand beside it. Nothing
runs longer than its limit, and no process is left.
Exit status: 0, 1 where something did not behave as it should, 2 for bad input.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from course import forked_ranks, processes, rank_program
from lessons.l12_break_it.gallery_table import ROOT, doctors_entries, guide, read_patients, read_table
from trainer import files, options

LIMIT = 120  # seconds; the longest wait of a script itself is 7 s, the rest is start-up on a busy machine
GUIDE = ROOT / "TROUBLESHOOTING.md"
LOGS = ROOT / "results/live/12_patients"  # what each of lesson 12's patients printed
STOP = threading.Event()  # Ctrl-C or SIGTERM
MARKS = set()  # of the runs under way: processes.end(mark) ends one
ABORTED = "terminate called without an active exception"  # entry 28
ATTEMPTS = 4  # it happened in 1 run of 12 with a DDP model, on two cores with PyTorch 2.14

# ---- run -----------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a run printed, and how it ended; status None: it was stopped at its limit."""

    status: int | None
    output: str


def run(entry, form, limit=LIMIT, fork=False):
    """The Outcome of one form. `fork`: without the launcher, as course/forked_ranks.py does it."""
    for _ in range(ATTEMPTS):
        if STOP.is_set():
            return Outcome(None, "")
        with tempfile.TemporaryDirectory() as folder:
            file, mark = Path(folder, "output"), f"{folder} {os.getpid()}"
            env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                   "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TMPDIR": folder,
                   # a free port for each torchrun, as newer ones take: with 2.10 the two forms would ask for the same
                   "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:0"}
            if fork and entry.fork:
                ranks = entry.ranks if entry.run.startswith("torchrun") else 0
                env |= entry.env if form == "broken" else {}
                status = forked_ranks.run([entry.script(form)], ranks, env, file, file, limit, STOP)
            else:
                MARKS.add(mark)
                with file.open("w") as out:
                    status = processes.run(["bash", "-c", entry.command(form)], limit, mark, env, cwd=ROOT, stdout=out,
                                           stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
                MARKS.discard(mark)
            output = file.read_text(errors="replace")
        if ABORTED not in output or STOP.is_set():
            break
    return Outcome(status, output)


@contextmanager
def workers(number):
    """A pool of threads. Ctrl-C and SIGTERM end what they run."""
    with ThreadPoolExecutor(number) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # Jupyter sends them in quick succession
                signal.signal(sign, signal.SIG_IGN)
            STOP.set()
            pool.shutdown(wait=False, cancel_futures=True)
            with ThreadPoolExecutor() as enders:  # all at once: SIGKILL follows half a second after Ctrl-C
                list(enders.map(processes.end, list(MARKS)))
            raise


def run_pair(entry, fork=False):
    """(broken, repaired): their Outcomes, at the same time; one after the other where they measure time."""
    with workers(1 if entry.apart else 2) as pool:
        return tuple(pool.map(lambda form: run(entry, form, fork=fork), ("broken", "repaired")))


def complaints(entry, broken, repaired):
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


def clean(line):
    """A line of output without paths of this machine, and without the end of what is very long."""
    line = re.sub(r"^\[rank(\d+)\]:\s*", r"rank \1: ", line.rstrip())
    line = re.sub(r"(?<![\w:/.])/(?:[\w.+-]+/)+", "…/", line).replace("scripts/broken/", "…/")
    return line if len(line) < 330 else f"{line[:line.rfind(' ', 0, 320)]} …"


def excerpt(output, pattern):
    """The lines that match, cleaned, each once."""
    wanted = (clean(line) for line in output.splitlines())
    return list(dict.fromkeys(line for line in wanted if line.strip() and re.search(pattern, line)))


def paint(text, colour):
    return f"\033[{colour}m{text}\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else text


def indent(lines, width=112):
    for line in lines:
        filled = textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=False) or [""]
        print(textwrap.indent("\n".join(filled), "    "))


def show(entry):
    """Print symptom, diagnosis, repair and proof; the number of things that did not behave as they should."""
    broken, repaired = run_pair(entry)
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
    return len(wrong)


def show_repair(entry, repaired, lines):
    """Print the repair, and what the repaired form prints."""
    print(paint("REPAIR", "1;35"), textwrap.fill(entry.repair, 105, subsequent_indent="    "))
    for line in entry.difference():
        print("    " + (paint(line, 31 if line[0] == "-" else 32) if line[0] in "+-" else line))
    print(paint("PROOF", "1;32"), f"$ {entry.command('repaired')}")
    indent(excerpt(repaired.output, lines))
    print(f"    → exit status {repaired.status}")


# ---- lesson 12's patients: without their names ---------------------------------------------------------------


def blind(entry, text):
    """Without what the script is called."""
    return re.sub(rf"[^\s\"]*\b{entry.name}\.py", "train.py", text)


def patient(entry, lines):
    """Print the broken form, run it, keep all that it prints, and print what its user sees; with `lines`
    only those. Returns whether one of these lines occurs."""
    entry = replace(entry, env={})  # tools are the learner's to call
    if not lines:
        source = (ROOT / entry.script("broken")).read_text().splitlines()
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


def look(entry, lines):
    """Print those lines of all that a patient has printed; is there one?"""
    matching = excerpt((LOGS / f"{entry.patient}.txt").read_text(), lines)
    indent(matching)
    return bool(matching)


def repair(entry):
    """Print the entry, why it is a mistake, its repair, and the proof; is the mistake gone?"""
    repaired = run(entry, "repaired")
    print(f"{entry.heading} ({entry.script('broken')})")
    print(textwrap.fill(f"→ {entry.why}", 112, initial_indent="    ", subsequent_indent="      "))
    show_repair(entry, repaired, f"{entry.seen}|{entry.proof}")
    return bool(re.search(entry.proof, repaired.output, re.M))


def check(entries, fork, out):
    """Run and judge all pairs, two at a time (four where they are forked); the number that failed."""
    def judge(entry):
        broken, repaired = run_pair(entry, fork)
        wrong = complaints(entry, broken, repaired)
        verdict = "NOT AS EXPECTED" if wrong else "as expected"
        print("\n    ".join([f"{verdict}: {entry.heading}", *wrong]) + "\n", end="", flush=True)
        return {"name": entry.name, "complaints": wrong, "broken": vars(broken), "repaired": vars(repaired)}

    with workers(4 if fork else 2) as pool:
        judged = list(pool.map(judge, entries))
    if out:
        rank_program.write_json(out, judged)
    return sum(bool(pair["complaints"]) for pair in judged)


# ---- command line --------------------------------------------------------------------------------------------


def do(args, table):
    """The exit status. ValueError for bad input."""
    if args.command == "list":
        for entry in table.values():
            print(f"{entry.name:20} {entry.heading}{' (silent)' * entry.silent}")
            indent([entry.plain])
    elif args.command == "show":
        return bool(show(table[args.name]))
    elif args.command in ("patient", "look", "repair"):
        if args.until and args.number > args.until:
            print(f"Patient {args.number} does not come today.")  # the quick tier
            return 0
        entry = read_patients()[args.number]
        if args.command == "look" and not (LOGS / f"{args.number}.txt").exists():
            raise ValueError(f"patient {args.number} has not come yet: run `gallery.py patient {args.number}` first")
        fine = {"patient": lambda: patient(entry, args.lines), "look": lambda: look(entry, args.lines),
                "repair": lambda: repair(entry)}[args.command]()
        if not fine:
            print("NOT AS EXPECTED: " + ("no such line" if args.command == "look" else "not what this lesson is about"))
        return not fine
    elif args.command == "check":
        if unknown := [name for name in args.names if name not in table]:
            raise ValueError(f"no mistake {unknown[0]!r}; `scripts/broken/gallery.py list` names them")
        if args.out:
            files.check_output("--out", args.out)
        return bool(check([table[name] for name in args.names or table], args.fork, args.out))
    else:
        GUIDE.write_text(guide(table))
        (ROOT / "doctor/entries.json").write_text(json.dumps(doctors_entries(), indent=1) + "\n")
        print(f"wrote {GUIDE.name} and doctor/entries.json")
    return 0


def main(arguments=None):
    table = read_table()
    parser = rank_program.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="the mistakes, and what one sees of each")
    shown = commands.add_parser("show", help="run both forms of a mistake: symptom, diagnosis, repair, proof")
    shown.add_argument("name", choices=table, metavar="NAME", help="of `list`")
    for command, what in (("patient", "lesson 12: print a script without its name, and what its user sees"),
                          ("look", "print lines of all that a patient has printed"),
                          ("repair", "show a patient's repair, and run it")):
        numbered = commands.add_parser(command, help=what)
        numbered.add_argument("number", type=int, choices=read_patients(), metavar="NUMBER", help="of the patient")
        numbered.add_argument("--until", type=options.positive(int), help="those with higher numbers do not run")
        if command != "repair":
            numbered.add_argument("lines" if command == "look" else "--lines", metavar="REGEX", type=re.compile,
                                  help="which lines to print")
    many = commands.add_parser("check", help="run pairs and judge them")
    many.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    many.add_argument("--fork", action="store_true", help="fork the ranks from one process, where torchrun is not "
                      "itself the subject: faster")
    many.add_argument("--out", type=options.nonempty_path, help="write what was found to this file, as JSON")
    commands.add_parser("guide", help="write TROUBLESHOOTING.md and doctor/entries.json")
    args = parser.parse_args(arguments)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup sets it
        signal.signal(signal.SIGHUP, signal.default_int_handler)  # told to stop, it leaves nothing running either
    with rank_program.stoppable(parser, signal.default_int_handler), suppress(BrokenPipeError):  # list | head
        return do(args, table)


if __name__ == "__main__":
    sys.exit(main())
