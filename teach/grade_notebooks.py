"""Grades the notebooks that a class has handed in. scripts/grade starts it.

    scripts/grade HANDED_IN                   a folder with a subfolder, or a notebook, for each learner
    scripts/grade HANDED_IN --lesson 05       any other lesson's notebook is named and not graded
    scripts/grade --otter FOLDER              no grading: the checks as tests for otter-grader

Each answer is judged by its lesson's check, on cases drawn anew by --seed, behind a shield: no network, no file of
yours or of another learner, bounds on time, memory, disk and output. An answer that breaks one loses its own point.
A file that cannot be graded is named, in a line. Into --out go answers.csv, grades.csv, index.html, a page a learner.

Exit status: 0 graded, 2 bad input, 130 stopped by Ctrl-C.
"""

import secrets
import sys
from pathlib import Path

import launch
from course import rank_program
from course.lesson import ROOT, some
from files import check_input, check_writable
from options import nonempty_path, positive
from teach import grade, handed_in, otter, questions, report, shield


def get_parser():
    parser = rank_program.parser(__doc__)
    parser.prog = "scripts/grade"
    parser.add_argument("folders", nargs="*", type=nonempty_path, metavar="DIR", help="with what was handed in")
    parser.add_argument("--lesson", dest="lessons", action="append", metavar="NN",
                        choices=[*handed_in.lessons(), *questions.NAMES],
                        help="the lesson that was asked for, or before or after, the tests; several: an option each; "
                             "default: any")
    parser.add_argument("--class", dest="names", type=nonempty_path, metavar="FILE",
                        help="a name a line, as folders or notebooks are called: who handed in nothing is named")
    parser.add_argument("--seed", help="of the cases; the same seed draws the same. Default: a new one, which is said")
    parser.add_argument("--limit", type=positive(float, 3600), default=60, metavar="SECONDS",
                        help="longest time for one answer (default: %(default)s)")
    parser.add_argument("--jobs", type=positive(int), help="notebooks at a time; default: one a core")
    parser.add_argument("--out", type=nonempty_path, default="build/grades", help="folder (default: %(default)s)")
    parser.add_argument("--give-back", type=nonempty_path, metavar="DIR",
                        help="copy each page into its learner's folder in DIR, as graded-NN.html, or graded.html "
                             "without --lesson")
    parser.add_argument("--no-shield", dest="shielded", action="store_false",
                        help="run answers as you, with your files and your network: only what you trust")
    parser.add_argument("--otter", type=nonempty_path, metavar="FOLDER",
                        help="write tests for otter-grader there, a folder a lesson, and grade nothing")
    return parser


def tell(line):
    print(line + "\n", end="", flush=True)  # in one piece: several threads tell


def main():
    parser = get_parser()
    args = parser.parse_args()
    if args.otter:
        with rank_program.stoppable(parser):
            check_writable("--otter", args.otter)
            print(f"{some(otter.write(args.otter), 'test')} for otter-grader: {args.otter}")
        return 0
    folders = args.folders
    if not folders:
        parser.error("name the folder with what was handed in")
    for folder in folders:
        if not folder.is_dir():
            parser.error(f"{folder} is no folder")
        if Path(folder, "course", "lesson.py").is_file() and not ROOT.is_relative_to(folder.resolve()):
            parser.error(f"{folder} is the copy of one learner: name the folder in which it lies")
        if ROOT.is_relative_to(folder.resolve()):
            parser.error(f"{folder} holds this course: hand-ins need a folder of their own")
    if args.give_back and not args.give_back.is_dir():
        parser.error(f"--give-back {args.give_back} is no folder")
    with rank_program.stoppable(parser):
        for folder in folders:
            if Path(args.out).resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"--out {args.out} lies in {folder}, and would count as handed in: name one outside")
        everything = grade.found(folders)
        if not everything:
            raise ValueError(f"no notebook and no learner's folder in {', '.join(map(str, folders))}")
        came = {one.learner for one in everything}
        if args.names:
            check_input("--class", args.names)
            everything += grade.missing(args.names.read_text(encoding="utf-8-sig").splitlines(), everything)
        if args.shielded:
            shield.check()
        args.out = Path(args.out)
        check_writable("--out", args.out)

        seed = args.seed or secrets.token_hex(4)
        answers, refused = grade.grade(everything, args.lessons, seed, args.limit, args.shielded,
                                       args.jobs or launch.cores(), tell)
        line = (f"{some(answers.file.nunique(), 'notebook')} graded, {len(refused)} not, with --seed {seed}"
                + ("" if args.shielded else ", without a shield"))
        pages = report.write(answers, refused, args.out, line)
        if args.give_back:
            name = "-".join(["graded", *(args.lessons or [])]) + ".html"
            pages = {learner: page for learner, page in pages.items() if learner in came}  # the list may misspell one
            without = report.give_back(pages, args.out, args.give_back, name)
            print(f"{some(len(pages) - len(without), 'page')} given back as {name}"
                  + (f"; no folder in {args.give_back}: {', '.join(without)}" if without else ""))
    print(f"{line}: {(args.out / 'index.html').resolve().as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
