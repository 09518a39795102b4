"""The results of a grading, for the teacher and for each learner: tables (CSV) and pages (HTML).

`answers` has a row for each exercise: learner, file, lesson, exercise, outcome, why, "look at this", code. `refused`
has a row for each file that could not be graded: learner, file, why.
"""

from pathlib import Path

import jinja2
import pandas as pd

import files

WORDS = {"right": "right", "wrong": "not yet", "untried": "not tried", "again": "to be graded again"}
TEMPLATES = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
                               autoescape=True)  # a learner's text is shown, and never run by a browser


def write(answers: pd.DataFrame, refused: pd.DataFrame, folder: Path, line: str) -> dict[str, str]:
    """Write answers.csv, grades.csv, index.html and a page a learner to `folder`; {learner: file name of the page}.
    `line` says how it was graded."""
    write_text(folder / "answers.csv", csv(answers.drop(columns="code")))
    grades = counted(answers, ["learner", "lesson"])
    learners = sorted({*answers.learner, *refused.learner})
    pages = {name: f"learner-{number:03}.html" for number, name in enumerate(learners, 1)}
    grades["page"] = grades.learner.map(pages)
    write_text(folder / "grades.csv", csv(grades))
    grades["cell"] = grades.right.astype(str) + " of " + grades["of"].astype(str)
    table = grades.pivot(index="learner", columns="lesson", values="cell").reindex(learners).fillna("–")
    for name in learners:
        lessons = [(key, list(rows.itertuples())) for key, rows in
                   answers[answers.learner == name].groupby(["lesson", "file"], sort=True)]
        render(folder / pages[name], "learner.html", title=name, lessons=lessons, words=WORDS,
               refused=list(refused[refused.learner == name].itertuples()))
    for old in set(folder.glob("learner-*.html")) - {folder / page for page in pages.values()}:
        old.unlink()  # of an earlier grading, with more learners
    asked = answers[["lesson", "exercise"]].drop_duplicates().sort_values("lesson", kind="stable")  # as lessons ask
    exercises = asked.merge(counted(answers, ["lesson", "exercise"]))
    messages = answers[answers.outcome == "wrong"].groupby(["lesson", "exercise"]).why
    exercises["often"] = [messages.get_group(key).mode()[0] if key in messages.groups else ""
                          for key in zip(exercises.lesson, exercises.exercise, strict=True)]
    render(folder / "index.html", "class.html", title="The class", line=line, table=table, pages=pages,
           gains=gains(answers), exercises=list(exercises.itertuples()),
           look=answers[answers["look at this"] != ""].to_dict("records"), refused=list(refused.itertuples()))
    return pages


def give_back(pages: dict[str, str], folder: Path, to: Path, name: str) -> list[str]:
    """Copy each learner's page to their own folder in `to`, as `name`; the learners who have none there."""
    learners = [learner for learner in pages if (to / learner).is_dir() and not (to / learner).is_symlink()]
    for learner in learners:
        write_text(to / learner / name, (folder / pages[learner]).read_text(encoding="utf-8"))
    return sorted(pages.keys() - learners)


def csv(table):
    """As text, where no cell begins a formula of a spreadsheet."""
    return table.map(lambda cell: f"'{cell}" if str(cell).startswith(("=", "+", "-", "@", "\t", "\r")) else cell
                     ).to_csv(index=False)


def counted(answers, by):
    """How many answers are right, wrong, untried and to be graded again, for each group."""
    table = pd.crosstab([answers[name] for name in by], answers.outcome).reindex(columns=list(WORDS), fill_value=0)
    table["of"] = table.sum(axis=1)
    return table.reset_index()


def gains(answers):
    """Of each idea of the two tests, how many had it right before, and after: "3 of 5". None without both tests."""
    tests = counted(answers[answers.lesson.isin(["before", "after"])], ["exercise", "lesson"])
    tests["cell"] = tests.right.astype(str) + " of " + tests["of"].astype(str)
    table = tests.pivot(index="exercise", columns="lesson", values="cell")
    return table if {"before", "after"} <= set(table.columns) else None


def render(path: Path, template: str, **values) -> None:
    """Write a page of templates/ with these values."""
    write_text(path, TEMPLATES.get_template(template).render(**values))


def write_text(path, text):
    with files.whole(path) as part:
        part.write_text(text, encoding="utf-8")
