"""Grades the notebooks that a class has handed in. scripts/grade starts it.

    scripts/grade handed-in --lesson 05                      a folder with a subfolder, or a notebook, for each learner
    scripts/grade handed-in --lesson 05 --class class.txt    who handed in nothing is named, too

Each answer is judged by its lesson's check, behind bubblewrap: no network, no file of yours or of another learner,
bounds on time, memory, disk and processes. A file that cannot be graded is named, in a line. Into --out go grades.csv,
answers.csv, index.html and a page per learner.

Exit status: 0 graded, 2 bad input, 130 stopped by Ctrl-C.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from course import rank_program
from course.lesson import notebooks, some
from teach import handed_in, questions, report, shield
from trainer import launch
from trainer.files import check_input, check_writable
from trainer.options import nonempty_path

LONGEST = 50_000  # characters of an answer that its page shows


def notebooks_in(folder: Path, class_list: list[str]) -> dict[str, list[Path]]:
    """{learner: notebooks, the newest last} of a folder with a subfolder or a notebook for each. Who is in the class
    alone has none."""
    found = {name: [] for name in class_list}
    for entry in folder.iterdir():
        whole = entry.is_dir() and not entry.is_symlink()
        if whole or entry.suffix == ".ipynb":
            name = (entry.name if whole else entry.stem).encode(errors="replace").decode()
            found.setdefault(name, []).extend(
                path for path in (entry.rglob("*.ipynb") if whole else [entry])
                if not any(part.startswith(".") for part in path.relative_to(folder).parts))  # Jupyter's checkpoints
    return {name: sorted(paths, key=lambda path: path.lstat().st_mtime) for name, paths in sorted(found.items())}


def refusal(learner: str, file: str, problem: Exception | str) -> dict:
    """A row on a file that is not graded. NotGraded says why by itself."""
    kind = "" if isinstance(problem, str | handed_in.NotGraded) else f"{type(problem).__name__}: "
    return {"learner": learner, "file": file, "why": kind + (str(problem).splitlines() or [""])[0]}


def answers_in(learner: str, file: str, lesson: str, work) -> list[dict]:
    """A row for each answer. `work`: a Paper, or the statements of a test."""
    if lesson in questions.NAMES:
        verdicts, code = questions.judged(lesson, work), {}
    else:
        code = {question.name: handed_in.shown(work, question)[:LONGEST] for question in work.questions}
        verdicts = (shield.judged(work) if work.own or work.files else
                    [(question.name, "untried", "Not tried yet.") for question in work.questions])
    return [{"learner": learner, "file": file, "lesson": lesson, "exercise": name, "outcome": outcome, "why": why,
             "code": code.get(name, "")} for name, outcome, why in verdicts]


def grade(folder: Path, found: dict[str, list[Path]], lessons: list[str] | None) -> tuple[list[dict], list[dict]]:
    """(answers, refused), the rows of teach/report.py. Of several notebooks of a lesson the newest is graded. A line is
    printed for each when it is done."""
    chosen, refused = {}, []
    for learner, paths in found.items():
        before = len(chosen) + len(refused)
        for path in paths:
            file = str(path.relative_to(folder))
            try:
                lesson, work = handed_in.opened(path)
            except Exception as problem:  # some code is too deep for Python itself to read
                refused.append(refusal(learner, file, problem))
            else:
                chosen |= {(learner, lesson): (file, work)} if lesson in (lessons or [lesson]) else {}
        if before == len(chosen) + len(refused):
            why = "each notebook is of another lesson" if paths else "nothing was handed in"
            refused.append(refusal(learner, learner, why))

    def judge(item):
        (learner, lesson), (file, work) = item
        try:
            rows = answers_in(learner, file, lesson, work)
        except InterruptedError:  # the whole grading is stopped
            raise
        except Exception as problem:  # whatever this file has brought about: the others are judged all the same
            refused.append(refusal(learner, file, problem))
            return []
        right, again = (sum(row["outcome"] == outcome for row in rows) for outcome in ("right", "again"))
        print(f"{file}: {lesson}, {right} of {some(len(rows), 'answer')} right"
              + f", {again} to be graded again: the machine was too busy" * bool(again) + "\n", end="", flush=True)
        return rows

    with ThreadPoolExecutor(launch.cores()) as pool:
        try:
            answers = [row for rows in pool.map(judge, chosen.items()) for row in rows]
        except BaseException:  # Ctrl-C or SIGTERM: do not wait for the answers that are still judged
            shield.STOPPED.set()
            raise
    for row in refused:
        print(f"{row['file']}: not graded: {row['why']}")
    return answers, refused


def main() -> int:
    parser = rank_program.parser(__doc__)
    parser.prog = "scripts/grade"
    parser.add_argument("folder", type=nonempty_path, metavar="FOLDER", help="with what was handed in")
    parser.add_argument("--lesson", dest="lessons", action="append", metavar="NN",
                        choices=[*notebooks(), *questions.NAMES],
                        help="grade this one; or before or after, the tests; one option per lesson; default: all")
    parser.add_argument("--class", dest="names", type=nonempty_path, metavar="FILE",
                        help="who should have handed in: a name per line, as folders or notebooks are called")
    parser.add_argument("--out", type=nonempty_path, default=Path("build/grades"), metavar="DIR",
                        help="default: %(default)s")
    args = parser.parse_args()
    with rank_program.stoppable(parser):
        if not args.folder.is_dir():
            parser.error(f"{args.folder} is no folder")
        if (args.folder / "course" / "lesson.py").is_file():
            parser.error(f"{args.folder} is one copy of the course: name the folder in which it lies")
        if args.out.resolve().is_relative_to(args.folder.resolve()):
            parser.error(f"--out {args.out} lies in {args.folder}, and would count as handed in: name one outside")
        names = []
        if args.names:
            check_input("--class", args.names)
            names = [line.strip() for line in args.names.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        if not (found := notebooks_in(args.folder, names)):
            raise ValueError(f"{args.folder} holds no notebook and no learner's folder")
        shield.check()
        check_writable("--out", args.out)
        answers, refused = grade(args.folder, found, args.lessons)
        if names and (others := found.keys() - set(names)):
            print(f"not in --class: {', '.join(sorted(others))}")
        summary = f"{some(len({row['file'] for row in answers}), 'notebook')} graded, {len(refused)} not"
        lessons = args.lessons or sorted({row["lesson"] for row in answers}) or [""]  # "": none is known, all are named
        report.write(answers, refused, lessons, args.out, summary)
    print(f"{summary}: {(args.out / 'index.html').resolve().as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
