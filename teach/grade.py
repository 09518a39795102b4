"""Grades a folder of handed-in notebooks: which there are, whose, and what their answers are worth."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pandas as pd

from course.lesson import some
from teach import handed_in, questions, shield


@dataclass
class HandedIn:
    """A notebook, or None where there is none of a learner."""

    learner: str
    folder: object
    path: object

    @property
    def file(self):
        return handed_in.plain(self.path.relative_to(self.folder) if self.path else f"{self.learner}/")


def found(folders):
    """What lies in the folders: a learner each subfolder, or each notebook that lies in none."""
    everything = []
    for folder in folders:
        for entry in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
            if entry.is_dir():
                paths = sorted(path for path in entry.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
                paths = [entry] if entry.is_symlink() else paths  # it may lead to another's work: opened() says so
                everything += [HandedIn(handed_in.plain(entry.name), folder, path) for path in paths or [None]]
            elif entry.suffix == ".ipynb":
                everything.append(HandedIn(handed_in.plain(entry.stem), folder, entry))
    return everything


def missing(names, everything):
    """Of a class those from whom nothing was found."""
    found_of = {"", *(one.learner for one in everything)}
    return [HandedIn(name, everything[0].folder, None) for name in dict.fromkeys(map(str.strip, names))
            if name not in found_of]


def grade(everything, lessons, seed, limit, shielded, jobs, tell):
    """(answers, refused) as report.py takes them. `lessons`: those that are expected, None for any. `tell`: is called
    with a line for each notebook, when it is done."""
    hidden = sorted({one.folder.resolve() for one in everything})
    taken, refused = sorted_out(everything, lessons)
    for one, why in refused:
        tell(f"{one.file}: {why}")

    def judge(asked):
        one, which, _ = asked
        try:
            rows = answers_in(*asked, hidden, seed, limit, shielded)
        except InterruptedError:  # all are stopped
            raise
        except Exception as problem:  # whatever this file has brought about: the others are judged all the same
            refused.append((one, why_not(problem)))
            tell(f"{one.file}: {refused[-1][1]}")
            return []
        right, untried = (sum(row["outcome"] == outcome for row in rows) for outcome in ("right", "untried"))
        stopped = [f"{row['exercise']}: {row['why']}" for row in rows if "It was stopped" in row["why"]]
        tell(f"{one.file}: {which}, {right} of {some(len(rows), 'answer')} right, {untried} not tried"
             + "".join(f"; {each}" for each in stopped))
        return rows

    with ThreadPoolExecutor(jobs) as pool:
        try:
            done = list(pool.map(judge, taken))
        except BaseException:  # Ctrl-C, SIGTERM or an error: nobody waits for the answers that are still judged
            shield.STOPPED.set()
            tell("not done: no table and no page was written")
            raise
    answers = pd.DataFrame([row for rows in done for row in rows],
                           columns=["learner", "file", "lesson", "exercise", "outcome", "why", "code"])
    refused = pd.DataFrame([(one.learner, one.file, why) for one, why in refused], columns=["learner", "file", "why"])
    return answers, refused


def sorted_out(everything, lessons):
    """([(one, its lesson, what of it is judged)], [(one, why it is not)]). Of several files of a learner with the same
    lesson the newest is judged."""
    newest, refused, others = {}, [], {}
    for one in everything:
        try:
            which, work = opened(one, lessons)
            if work is None:  # another lesson's: it counts where none that was asked for is there
                others.setdefault(one.learner, []).append((one, which))
                continue
        except Exception as problem:  # some code is too deep for Python itself to read
            refused.append((one, why_not(problem)))
            continue
        mine, known = (one, which, work), newest.get((one.learner, which))
        if known:
            older, mine = sorted([known, mine], key=lambda each: each[0].path.stat().st_mtime)
            refused.append((older[0], f"{mine[0].file} is the same lesson, and newer"))
        newest[one.learner, which] = mine
    for learner, those in others.items():
        if not any((learner, lesson) in newest for lesson in lessons):
            one = those[0][0] if len(those) == 1 else HandedIn(learner, those[0][0].folder, None)
            found_ones = ", ".join(sorted({which for _, which in those}))
            refused.append((one, f"this is {found_ones}, and {' or '.join(lessons)} was asked for"))
    return list(newest.values()), refused


def why_not(problem):
    """In a line: NotGraded says it by itself."""
    kind = "" if isinstance(problem, handed_in.NotGraded) else f"cannot be graded: {type(problem).__name__}: "
    return handed_in.plain(kind + (str(problem).splitlines() or [""])[0]).removesuffix(": ")


def opened(one, lessons):
    """(its lesson, a Paper or, of a test, the statements of its cells; None where that lesson is not asked for).
    NotGraded where there is none."""
    if one.path is None:
        raise handed_in.NotGraded("no notebook was handed in")
    notebook = handed_in.read(one.path)
    which = handed_in.lesson_of(notebook)
    if lessons and which not in lessons:
        return which, None
    if which in questions.NAMES:
        return which, handed_in.taken_apart(notebook)[0]
    return which, handed_in.paper(notebook, one.path.parent)


def answers_in(one, which, work, hidden, seed, limit, shielded):
    if which in questions.NAMES:
        verdicts, code = questions.judged(which, work), {}
    else:
        verdicts = shield.judged(work, hidden, seed, limit, shielded)
        code = {question.name: (work.files | work.source).get(question.given, "") for question in work.questions}
    return [{"learner": one.learner, "file": one.file, "lesson": which, "exercise": name, "outcome": outcome,
             "why": handed_in.plain(why), "code": handed_in.plain(code.get(name, ""), handed_in.TEXT)}
            for name, outcome, why in verdicts]
