"""Grades the notebooks that a class has handed in. scripts/grade starts it.

    scripts/grade HANDED_IN                   a folder with a subfolder, or a notebook, for each learner
    scripts/grade HANDED_IN --lesson 05       any other lesson's notebook is named and not graded

Each answer is judged by its lesson's check, on cases drawn anew by --seed, behind a shield: no network, no file of
yours or of another learner, bounds on time, memory, disk and output. An answer that breaks one loses its own point.
A file that cannot be graded is named, in a line. Into --out go answers.csv, grades.csv, index.html, a page a learner.

Exit status: 0 graded, 2 bad input, 130 stopped by Ctrl-C.
"""

import secrets
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import launch
from course import rank_program
from course.lesson import ROOT, notebooks, some
from files import check_input, check_writable
from options import nonempty_path, positive
from teach import handed_in, questions, report, shield


@dataclass
class HandIn:
    """A notebook of a learner; `path` is None where a learner has handed in none."""

    learner: str
    folder: Path
    path: Path | None

    @property
    def file(self) -> str:
        return handed_in.plain(self.path.relative_to(self.folder) if self.path else f"{self.learner}/")


def hand_ins_in(folders: list[Path]) -> list[HandIn]:
    """The notebooks in the folders: each subfolder is a learner's, and each notebook that lies in none."""
    hand_ins = []
    for folder in folders:
        for entry in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
            if entry.is_dir():
                paths = sorted(path for path in entry.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
                paths = [entry] if entry.is_symlink() else paths  # it may lead to another's work: opened() says so
                hand_ins += [HandIn(handed_in.plain(entry.name), folder, path) for path in paths or [None]]
            elif entry.suffix == ".ipynb":
                hand_ins.append(HandIn(handed_in.plain(entry.stem), folder, entry))
    return hand_ins


def opened(hand_in, lessons):
    """(its lesson, a Paper, or the statements of a test's cells, or None if another lesson was asked for). NotGraded if
    no lesson's notebook is there."""
    if hand_in.path is None:
        raise handed_in.NotGraded("no notebook was handed in")
    notebook = handed_in.read(hand_in.path)
    lesson = handed_in.lesson_of(notebook)
    if lessons and lesson not in lessons:
        return lesson, None
    if lesson in questions.NAMES:
        return lesson, handed_in.statements(notebook)
    return lesson, handed_in.paper(notebook, hand_in.path.parent)


def sorted_out(hand_ins: list[HandIn], lessons: list[str] | None) -> tuple[list, list]:
    """([(hand-in, its lesson, its Paper or statements)], [(hand-in, why it is not graded)]).

    If a learner has several files of one lesson, one is graded: a file with the learner's own cells before one without,
    then one in my-notebooks before others, then the newest. A file of another lesson is named only if the learner has
    handed in none of the lessons that were asked for.
    """
    newest, refused, others = {}, [], {}
    for hand_in in hand_ins:
        try:
            lesson, work = opened(hand_in, lessons)
        except Exception as problem:  # some code is too deep for Python itself to read
            refused.append((hand_in, why_not(problem)))
            continue
        if work is None:
            others.setdefault(hand_in.learner, []).append((hand_in, lesson))
            continue
        mine, known = (hand_in, lesson, work), newest.get((hand_in.learner, lesson))
        if known:
            other, mine = sorted([known, mine], key=preferred)
            refused.append((other[0], f"{mine[0].file} is the same lesson, and was written in, or is newer"))
        newest[hand_in.learner, lesson] = mine
    for learner, of_others in others.items():
        if not any((learner, lesson) in newest for lesson in lessons):
            hand_in = of_others[0][0] if len(of_others) == 1 else HandIn(learner, of_others[0][0].folder, None)
            names = ", ".join(sorted({lesson for _, lesson in of_others}))
            refused.append((hand_in, f"this is {names}, and {' or '.join(lessons)} was asked for"))
    return list(newest.values()), refused


def preferred(taken):
    """Sort key: the largest is graded."""
    hand_in, _, work = taken
    return bool(getattr(work, "own", True)), "my-notebooks" in hand_in.path.parts, hand_in.path.stat().st_mtime


def why_not(problem):
    """In a line: NotGraded says it by itself."""
    kind = "" if isinstance(problem, handed_in.NotGraded) else f"cannot be graded: {type(problem).__name__}: "
    return handed_in.plain(kind + (str(problem).splitlines() or [""])[0]).removesuffix(": ")


def grade(hand_ins: list[HandIn], lessons: list[str] | None, seed: str, limit: float, shielded: bool, jobs: int,
          tell: Callable[[str], None]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(answers, refused) as teach/report.py takes them. `lessons`: those that are expected, None for any. `limit`:
    seconds of an answer. `jobs`: notebooks at a time. `tell` gets a line for each notebook when it is done."""
    hidden = sorted({hand_in.folder.resolve() for hand_in in hand_ins})
    taken, refused = sorted_out(hand_ins, lessons)
    for hand_in, why in refused:
        tell(f"{hand_in.file}: {why}")

    def judge(asked):
        hand_in, lesson, _ = asked
        try:
            rows = answers_in(*asked, hidden, seed, limit, shielded)
        except InterruptedError:  # the whole grading is stopped
            raise
        except Exception as problem:  # whatever this file has brought about: the others are judged all the same
            refused.append((hand_in, why_not(problem)))
            tell(f"{hand_in.file}: {refused[-1][1]}")
            return []
        right, untried, again = (sum(row["outcome"] == outcome for row in rows) for outcome in (
            "right", "untried", "again"))
        stopped = [f"; {row['exercise']}: {row['why']}" for row in rows if "It was stopped" in row["why"]]
        tell(f"{hand_in.file}: {lesson}, {right} of {some(len(rows), 'answer')} right, {untried} not tried"
             + (f", {again} to be graded again: the machine was too busy" if again else "") + "".join(stopped))
        return rows

    with ThreadPoolExecutor(jobs) as pool:
        try:
            judged = list(pool.map(judge, taken))
        except BaseException:  # Ctrl-C, SIGTERM or an error: do not wait for the answers that are still judged
            shield.STOPPED.set()
            tell("not done: no table and no page was written")
            raise
    answers = pd.DataFrame([row for rows in judged for row in rows],
                           columns=["learner", "file", "lesson", "exercise", "outcome", "why", "look at this", "code"])
    refused = pd.DataFrame([(hand_in.learner, hand_in.file, why) for hand_in, why in refused],
                           columns=["learner", "file", "why"])
    return answers, refused


def answers_in(hand_in, lesson, work, hidden, seed, limit, shielded):
    if lesson in questions.NAMES:
        verdicts, asked = questions.judged(lesson, work), {}
    else:
        verdicts = (shield.judged(work, hidden, seed, limit, shielded) if work.own or work.files else
                    [(question.name, "untried", "Not tried yet.") for question in work.questions])
        asked = {question.name: question for question in work.questions}
    return [{"learner": hand_in.learner, "file": hand_in.file, "lesson": lesson, "exercise": name, "outcome": outcome,
             "why": handed_in.plain(why),
             "look at this": handed_in.to_look_at(work, asked[name], outcome) if asked else "",
             "code": handed_in.plain(handed_in.shown(work, asked[name]) if asked else "", handed_in.TEXT)}
            for name, outcome, why in verdicts]


def get_parser():
    parser = rank_program.parser(__doc__)
    parser.prog = "scripts/grade"
    parser.add_argument("folders", nargs="*", type=nonempty_path, metavar="DIR", help="with what was handed in")
    parser.add_argument("--lesson", dest="lessons", action="append", metavar="NN",
                        type=lambda text: text.zfill(2 + text[-1:].isalpha()) if text[:1].isdigit() else text,
                        choices=[*notebooks(), *questions.NAMES],
                        help="the lesson that was asked for, or before or after, the tests; several: an option each; "
                             "default: any")
    parser.add_argument("--class", dest="names", type=nonempty_path, metavar="FILE",
                        help="a name a line, as folders or notebooks are called: who handed in nothing is named")
    parser.add_argument("--seed", help="of the cases; the same seed draws the same. Default: a new one, which is said")
    parser.add_argument("--limit", type=positive(float, 3600), default=60, metavar="SECONDS",
                        help="longest time for one answer (default: %(default)s)")
    parser.add_argument("--jobs", type=positive(int), help="notebooks at a time; default: one a core")
    parser.add_argument("--out", type=nonempty_path, default=Path("build/grades"),
                        help="folder (default: %(default)s)")
    parser.add_argument("--give-back", type=nonempty_path, metavar="DIR",
                        help="copy each page into its learner's folder in DIR, as graded-NN.html, or graded.html "
                             "without --lesson")
    parser.add_argument("--no-shield", dest="shielded", action="store_false",
                        help="run answers as you, with your files and your network: only what you trust")
    return parser


def main() -> int:
    parser = get_parser()
    args = parser.parse_args()
    if not args.folders:
        parser.error("name the folder with what was handed in")
    for folder in args.folders:
        if not folder.is_dir():
            parser.error(f"{folder} is no folder")
        if Path(folder, "course", "lesson.py").is_file() and not ROOT.is_relative_to(folder.resolve()):
            parser.error(f"{folder} is the copy of one learner: name the folder in which it lies")
        if ROOT.is_relative_to(folder.resolve()):
            parser.error(f"{folder} holds this course: hand-ins need a folder of their own")
        if args.out.resolve().is_relative_to(folder.resolve()):
            parser.error(f"--out {args.out} lies in {folder}, and would count as handed in: name one outside")
    if args.give_back and not args.give_back.is_dir():
        parser.error(f"--give-back {args.give_back} is no folder")
    with rank_program.stoppable(parser):
        hand_ins = hand_ins_in(args.folders)
        if not hand_ins:
            raise ValueError(f"no notebook and no learner's folder in {', '.join(map(str, args.folders))}")
        came = {hand_in.learner for hand_in in hand_ins}
        if args.names:
            check_input("--class", args.names)
            names = dict.fromkeys(map(str.strip, args.names.read_text(encoding="utf-8-sig").splitlines()))
            hand_ins += [HandIn(name, args.folders[0], None) for name in names if name and name not in came]
        if args.shielded:
            shield.check()
        check_writable("--out", args.out)

        seed = args.seed or secrets.token_hex(4)
        answers, refused = grade(
            hand_ins, args.lessons, seed, args.limit, args.shielded, args.jobs or launch.cores(),
            tell=lambda line: print(line + "\n", end="", flush=True))  # in one piece: several threads tell
        summary = (f"{some(answers.file.nunique(), 'notebook')} graded, {len(refused)} not, with --seed {seed}"
                   + ("" if args.shielded else ", without a shield"))
        pages = report.write(answers, refused, args.out, summary)
        if args.give_back:
            name = "-".join(["graded", *(args.lessons or [])]) + ".html"
            pages = {learner: page for learner, page in pages.items() if learner in came}  # the list may misspell one
            without = report.give_back(pages, args.out, args.give_back, name)
            print(f"{some(len(pages) - len(without), 'page')} given back as {name}"
                  + (f"; no folder in {args.give_back}: {', '.join(without)}" if without else ""))
    print(f"{summary}: {(args.out / 'index.html').resolve().as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
