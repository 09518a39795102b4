"""Grades a folder of handed-in notebooks: which there are, whose, and what their answers are worth."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pandas as pd

from course.classroom import handed_in, questions, shield
from course.lesson import some


@dataclass
class HandedIn:
    """A notebook, or None where there is none of a learner."""

    learner: str
    folder: object
    path: object

    @property
    def file(self):
        return str(self.path.relative_to(self.folder)) if self.path else f"{self.learner}/"


def found(folders):
    """What lies in the folders: a learner each subfolder, or each notebook that lies in none."""
    everything = []
    for folder in folders:
        for entry in sorted(folder.iterdir()):
            if entry.is_dir() and not entry.name.startswith("."):
                paths = sorted(path for path in entry.rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
                everything += [HandedIn(entry.name, folder, path) for path in paths or [None]]
            elif entry.suffix == ".ipynb":
                everything.append(HandedIn(entry.stem, folder, entry))
    return everything


def missing(names, everything):
    """Of a class those from whom nothing was found."""
    found_of = {"", *(one.learner for one in everything)}
    return [HandedIn(name, everything[0].folder, None) for name in dict.fromkeys(map(str.strip, names))
            if name not in found_of]


def grade(everything, lesson, seed, limit, shielded, jobs, tell):
    """(answers, refused) as report.py takes them. `lesson`: the one that is expected, None for any. `tell`: is called
    with a line for each notebook, when it is done."""
    hidden = sorted({one.folder.resolve() for one in everything})
    taken, refused = sorted_out(everything, lesson)
    for one, why in refused:
        tell(f"{one.file}: {why}")

    def judge(asked):
        one, which, _ = asked
        rows = answers_in(*asked, hidden, seed, limit, shielded)
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


def sorted_out(everything, lesson):
    """([(one, its lesson, what of it is judged)], [(one, why it is not)]). Of several files of a learner with the same
    lesson the newest is judged."""
    newest, refused = {}, []
    for one in everything:
        try:
            which, work = opened(one, lesson)
        except handed_in.NotGraded as problem:
            refused.append((one, str(problem)))
            continue
        mine, known = (one, which, work), newest.get((one.learner, which))
        if known:
            older, mine = sorted([known, mine], key=lambda each: each[0].path.stat().st_mtime)
            refused.append((older[0], f"{mine[0].file} is the same lesson, and newer"))
        newest[one.learner, which] = mine
    return list(newest.values()), refused


def opened(one, lesson):
    """(its lesson, a Paper or, of a test, the statements of its cells). NotGraded where it is not to be judged."""
    if one.path is None:
        raise handed_in.NotGraded("no notebook was handed in")
    notebook = handed_in.read(one.path)
    which = handed_in.lesson_of(notebook)
    if lesson and which != lesson:
        raise handed_in.NotGraded(f"this is {which}, and {lesson} was asked for")
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
             "why": why, "code": code.get(name, "")} for name, outcome, why in verdicts]
