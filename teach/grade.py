"""Grades the notebooks that a class has handed in. scripts/grade starts it.

    scripts/grade HANDED_IN --lesson 05       a folder with a subfolder or a notebook for each learner; or a .zip or
                                              folder as Canvas or Moodle makes it. Other lessons are not graded
    scripts/grade HANDED_IN --lesson 05 --class class.csv --deadline 2026-11-30T18:00       who is missing, who is late
    scripts/grade HANDED_IN --lesson 05 --only ada                                          one learner again
    scripts/grade --marks marks.csv           no answer is judged: the last grading, with your marks

Each answer is judged by its lesson's check, on cases drawn anew by --seed, behind a shield: no network, no file of
yours or of another learner, bounds on time, memory, disk and output. An answer that breaks one loses its own point.
A file that cannot be graded is named, in a line. Into --out go answers.csv, grades.csv,
index.html, a page a learner, and with a --class.csv import.csv for the LMS.

Exit status: 0 graded, 2 bad input, 130 stopped by Ctrl-C.
"""

import json
import math
import secrets
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pandas as pd

from course import rank_program
from course.lesson import ROOT, notebooks, some
from teach import handed_in, office, questions, report, shield
from teach.office import HandIn
from trainer import launch
from trainer.files import check_input, check_writable
from trainer.options import nonempty_path, positive

LAST = "graded.json"  # in --out: what a grading found, for the next
NOTHING = "nothing was handed in"


def opened(hand_in, lessons):
    """(its lesson, a Paper, or the statements of a test's cells, or None if another lesson was asked for). NotGraded if
    no lesson's notebook is there."""
    if hand_in.path is None:
        raise handed_in.NotGraded("no notebook was handed in" if hand_in.folder else NOTHING)
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
          tell: Callable[[str], None]) -> tuple[list[dict], list[dict]]:
    """(answers, refused), the rows of teach/report.py. `lessons`: those that are expected, None for any. `limit`:
    seconds of an answer. `jobs`: notebooks at a time. `tell` gets a line for each notebook when it is done."""
    hidden = sorted({hand_in.folder.resolve() for hand_in in hand_ins if hand_in.folder})
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
    return [row for rows in judged for row in rows], [
        {"learner": hand_in.learner, "file": hand_in.file, "why": why} for hand_in, why in refused]


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
             "code": handed_in.plain(handed_in.shown(work, asked[name]) if asked else "", handed_in.TEXT),
             "tree": handed_in.tree_of(work, asked[name]) if asked else "", "late": hand_in.late}
            for name, outcome, why in verdicts]


def get_parser():
    parser = rank_program.parser(__doc__)
    parser.prog = "scripts/grade"
    parser.add_argument("places", nargs="*", type=nonempty_path, metavar="DIR_OR_ZIP", help="with what was handed in; "
                        "none: what the last grading found is written again, with the --marks of today")
    parser.add_argument("--lesson", dest="lessons", action="append", metavar="NN", type=office.lesson_named,
                        choices=[*notebooks(), *questions.NAMES],
                        help="the lesson that was asked for, or before or after, the tests; several: an option each; "
                             "default: any")
    parser.add_argument("--class", dest="names", type=nonempty_path, metavar="FILE",
                        help="a name a line, as folders or notebooks are called; or the .csv that Canvas or Moodle "
                             "exports: who handed in nothing is named, and import.csv goes back to where it came from")
    parser.add_argument("--only", action="append", metavar="NAME", help="judge this learner alone, and keep what the "
                        "last grading in --out found of the others; several: an option each")
    parser.add_argument("--marks", type=nonempty_path, metavar="FILE.csv", help="your weights and marks, in columns "
                        "learner, lesson, exercise, weight, points (0 to 1), comment: an empty cell chooses all")
    parser.add_argument("--deadline", type=datetime.fromisoformat, metavar="2026-11-30T18:00",
                        help="files that were saved later are marked; no point is taken. A day alone: its beginning")
    parser.add_argument("--seed", help="of the cases; the same seed draws the same. Default: a new one, which is said, "
                                       "or with --only that of the last grading")
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
    again = args.only or not args.places
    if args.only and not args.places:
        parser.error("name the folder with what was handed in")
    with rank_program.stoppable(parser), tempfile.TemporaryDirectory() as spare:
        for place in args.places:
            if not place.is_dir() and not (place.suffix == ".zip" and place.is_file()):
                parser.error(f"{place} is no folder and no .zip")
            if Path(place, "course", "lesson.py").is_file() and not ROOT.is_relative_to(place.resolve()):
                parser.error(f"{place} is the copy of one learner: name the folder in which it lies")
            if ROOT.is_relative_to(place.resolve()):
                parser.error(f"{place} holds this course: hand-ins need a folder of their own")
            if args.out.resolve().is_relative_to(place.resolve()):
                parser.error(f"--out {args.out} lies in {place}, and would count as handed in: name one outside")
        if args.give_back and not args.give_back.is_dir():
            parser.error(f"--give-back {args.give_back} is no folder")
        class_list = office.ClassList(args.names)
        marks = office.read_marks(args.marks) if args.marks else []
        deadline = args.deadline.timestamp() if args.deadline else math.inf
        hand_ins = office.hand_ins_in(args.places, Path(spare), class_list, deadline)
        came = {hand_in.learner for hand_in in hand_ins}
        only = {class_list.learner(name) for name in args.only or ()}
        if strange := only - came:
            raise ValueError(f"--only: nothing was handed in by {', '.join(sorted(strange))}, but by "
                             f"{', '.join(sorted(came)) or 'no learner'}")
        if not came and not again:
            raise ValueError(f"no notebook and no learner's folder in {', '.join(map(str, args.places))}")
        if again:
            check_input("the last grading,", args.out / LAST)
            last = json.loads((args.out / LAST).read_text(encoding="utf-8"))
            if args.lessons and last["lessons"] and not set(args.lessons) <= set(last["lessons"]):
                raise ValueError(f"--lesson {', '.join(args.lessons)}: the grading in {args.out} is of lesson "
                                 f"{', '.join(last['lessons'])}; name another --out")
            hand_ins = [hand_in for hand_in in hand_ins if hand_in.learner in only]
        else:
            hand_ins += [HandIn(name, None, None) for name in class_list.rows if name not in came]
            last = {"seed": secrets.token_hex(4), "answers": [], "refused": [], "lessons": args.lessons}
        if args.shielded and hand_ins:
            shield.check()
        check_writable("--out", args.out)

        seed = args.seed or last["seed"]
        answers, refused = grade(
            hand_ins, args.lessons, seed, args.limit, args.shielded, args.jobs or launch.cores(),
            tell=lambda line: print(line + "\n", end="", flush=True))  # in one piece: several threads tell
        answers += [row for row in last["answers"] if row["learner"] not in only
                    or args.lessons and row["lesson"] not in args.lessons]
        refused += [row for row in last["refused"] if row["learner"] not in only]
        lessons = last["lessons"] or sorted({row["lesson"] for row in answers})
        report.write_text(args.out / LAST, json.dumps({"seed": seed, "answers": answers, "refused": refused,
                                                       "lessons": last["lessons"]}))
        answers, unmet = office.marked(report.tabled(answers), marks, class_list)
        refused = pd.DataFrame(refused, columns=["learner", "file", "why"])
        summary = (f"{some(answers.file.nunique(), 'notebook')} graded, {len(refused)} not, with --seed {seed}"
                   + ("" if args.shielded else ", without a shield"))
        pages = report.write(answers, refused, lessons, class_list, args.out, summary)
        for what, names in (("not in --class", came - set(class_list.rows) if args.names else ()),
                            ("no such answer, for --marks", unmet)):
            if names:
                print(f"{what}: {', '.join(sorted(names))}")
        if args.deadline and any(place.is_file() for place in args.places):
            print("--deadline is not used for a .zip: its times are those of the download")
        if args.give_back:
            name = "-".join(["graded", *(last["lessons"] or [])]) + ".html"
            listed = set(refused[refused.why == NOTHING].learner)  # the list may misspell one
            pages = {learner: page for learner, page in pages.items() if learner not in listed}
            without = report.give_back(pages, args.out, args.give_back, name, class_list)
            print(f"{some(len(pages) - len(without), 'page')} given back as {name}"
                  + (f"; no folder in {args.give_back}: {', '.join(without)}" if without else ""))
    print(f"{summary}: {(args.out / 'index.html').resolve().as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
