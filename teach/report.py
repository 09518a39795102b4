"""The results of a grading, for the teacher and for each learner: tables (CSV) and pages (HTML).

`answers` has a row for each exercise: learner, file, lesson, exercise, outcome, why, code. `refused` has a row for each
file that could not be graded, and for each learner of the class who handed in nothing: learner, file, why.
"""

from pathlib import Path

import jinja2
import pandas as pd

from trainer import files

WORDS = {"right": "right", "wrong": "not yet", "untried": "not tried", "again": "to be graded again"}
ANSWERS = ["learner", "file", "lesson", "exercise", "outcome", "why", "code"]
TEMPLATES = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
                               autoescape=True)  # a learner's text is shown, and never run by a browser


def write(answers: list[dict], refused: list[dict], lessons: list[str], folder: Path, line: str) -> None:
    """Write answers.csv, grades.csv, index.html and a page per learner to `folder`.

    `lessons`: those of which each learner has a row; [""] where none is known. `line` says how it was graded.
    """
    answers = pd.DataFrame(answers, columns=ANSWERS)
    refused = pd.DataFrame(refused, columns=["learner", "file", "why"])
    write_text(folder / "answers.csv", answers.drop(columns="code").to_csv(index=False))
    learners = sorted({*answers.learner, *refused.learner})
    pages = {name: f"learner-{number:03}.html" for number, name in enumerate(learners, 1)}
    by = ["learner", "lesson"]
    grades = counted(answers, by).reindex(pd.MultiIndex.from_product([learners, lessons], names=by))
    # With an answer that is to be graded again nobody knows the percent.
    grades.insert(0, "percent", (100 * grades.right / grades["of"]).where(grades.again == 0).round(2))
    grades = grades.astype(dict.fromkeys([*WORDS, "of"], "Int64")).reset_index()
    reasons = refused.groupby("learner").why.agg("; ".join)
    grades["why not"] = grades.learner.map(reasons).where(grades["of"].isna())
    grades["page"] = grades.learner.map(pages)
    write_text(folder / "grades.csv", grades.to_csv(index=False))
    for old in folder.glob("learner-*.html"):
        old.unlink()  # of an earlier grading
    for name in learners:
        render(folder / pages[name], "learner.html", title=name, words=WORDS,
               lessons=list(answers[answers.learner == name].groupby(["lesson", "file"])),
               refused=list(refused[refused.learner == name].itertuples()))
    exercises = counted(answers, ["lesson", "exercise"])
    often = answers[answers.outcome == "wrong"].groupby(["lesson", "exercise"]).why.agg(lambda why: why.mode()[0])
    exercises["often"] = often.reindex(exercises.index).fillna("")
    cells = grades.assign(cell=[f"{row.right} of {row.of}" if pd.notna(row.of) else "–" for row in grades.itertuples()])
    render(folder / "index.html", "class.html", title="The class", line=line, pages=pages,
           table=cells.pivot(index="learner", columns="lesson", values="cell"), refused=list(refused.itertuples()),
           spread=grades.groupby("lesson").percent.describe().drop(columns="std").fillna(0).round().astype(int),
           exercises=list(exercises.reset_index().itertuples()))


def counted(answers: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """How many answers of each group, in the order in which they were first seen, have each outcome, and `of` all."""
    table = pd.crosstab([answers[name] for name in by], answers.outcome).reindex(columns=list(WORDS), fill_value=0)
    table["of"] = table.sum(axis=1)
    return table.reindex(pd.MultiIndex.from_frame(answers[by].drop_duplicates()))


def render(path: Path, template: str, **values) -> None:
    """Write a page of templates/ with these values."""
    write_text(path, TEMPLATES.get_template(template).render(**values))


def write_text(path: Path, text: str) -> None:
    """Write the file whole or not at all. A notebook's JSON may hold half a character, which no encoding has."""
    with files.whole(path) as part:
        part.write_text(text, encoding="utf-8", errors="replace")
