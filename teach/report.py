"""The results of a grading, for the teacher and for each learner: tables (CSV) and pages (HTML).

`answers` has a row for each exercise: learner, file, lesson, exercise, outcome, why, "look at this", code, tree, late,
and the teacher's weight, points and comment. `refused` has a row for each file that could not be graded, and for each
learner of the class who handed in nothing: learner, file, why.
"""

import re
from pathlib import Path

import jinja2
import pandas as pd

from teach.office import ClassList
from trainer import files

WORDS = {"right": "right", "wrong": "not yet", "untried": "not tried", "again": "to be graded again"}
FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠].", re.S)  # https://owasp.org/www-community/attacks/CSV_Injection
TEMPLATES = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
                               autoescape=True)  # a learner's text is shown, and never run by a browser


def tabled(answers: list[dict]) -> pd.DataFrame:
    """The rows as a table. "look at this" names, too, whose answer has the same syntax: nobody is accused."""
    table = pd.DataFrame(answers, columns=["learner", "file", "lesson", "exercise", "outcome", "why", "look at this",
                                           "code", "tree", "late"])
    for _, same in table[table.tree != ""].groupby(["lesson", "exercise", "tree"]):
        how = "word for word" if same.code.nunique() == 1 else "but for names and comments"
        for row in same.index if len(same) > 1 else ():
            found = f"the same as {', '.join(same.learner.drop(row))}, {how}"
            table.loc[row, "look at this"] = "; ".join(filter(None, [table.loc[row, "look at this"], found]))
    return table.drop(columns="tree")


def write(answers: pd.DataFrame, refused: pd.DataFrame, lessons: list[str], class_list: ClassList, folder: Path,
          line: str) -> dict[str, str]:
    """Write answers.csv, grades.csv, index.html and a page a learner to `folder`; {learner: file name of the page}.

    `lessons`: those of which each learner has a row. `line` says how it was graded. With the class list of an LMS
    import.csv is written, too.
    """
    write_text(folder / "answers.csv", csv(answers.drop(columns="code")))
    learners = sorted({*answers.learner, *refused.learner})
    pages = {name: f"learner-{number:03}.html" for number, name in enumerate(learners, 1)}
    by = ["learner", "lesson"]
    groups = answers.assign(got=answers.weight * answers.points).groupby(by)
    # Of a sum with an answer that is to be graded again nobody knows the percent.
    percent = (100 * groups.got.agg(lambda got: got.sum(skipna=False)) / groups.weight.sum()).astype(float).round(2)
    grades = counted(answers, by).set_index(by).assign(late=groups.late.max())
    grades.insert(0, "percent", percent)
    grades = grades.reindex(pd.MultiIndex.from_product([learners, lessons], names=by)).reset_index()
    grades[[*WORDS, "of"]] = grades[[*WORDS, "of"]].astype("Int64")
    reasons = refused.drop_duplicates("learner").set_index("learner").why
    grades["why not"] = grades.learner.map(reasons).where(grades["of"].isna())
    grades["page"] = grades.learner.map(pages)
    write_text(folder / "grades.csv", csv(grades))
    (folder / "import.csv").unlink(missing_ok=True)  # of an earlier run
    if class_list.rows:
        write_text(folder / "import.csv", csv(class_list.for_lms(grades.pivot(index="learner", columns="lesson",
                                                                              values="percent"))))
    grades["cell"] = [f"{row.right} of {row.of}: {row.percent:g} %" + (f" (late: {row.late})" if row.late else "")
                      if row.page and pd.notna(row.of) else "–" for row in grades.itertuples()]
    table = grades.pivot(index="learner", columns="lesson", values="cell")
    spread = grades.groupby("lesson").percent.describe().drop(columns="std").fillna(0).round().astype(int)
    for name in learners:
        lessons = [(key, list(rows.itertuples()), percent[name, key[0]]) for key, rows in
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
    render(folder / "index.html", "class.html", title="The class", line=line, table=table, pages=pages, spread=spread,
           gains=gains(answers), exercises=list(exercises.itertuples()),
           look=answers[answers["look at this"] != ""].to_dict("records"), refused=list(refused.itertuples()))
    return pages


def give_back(pages: dict[str, str], folder: Path, to: Path, name: str, class_list: ClassList) -> list[str]:
    """Copy each learner's page to their own folder in `to`, as `name`; the learners who have none there."""
    own = {class_list.of(path): path for path in sorted(to.iterdir(), reverse=True)  # Moodle: _file before _onlinetext
           if path.is_dir() and not path.is_symlink()}
    for learner in pages.keys() & own.keys():
        write_text(own[learner] / name, (folder / pages[learner]).read_text(encoding="utf-8"))
    return sorted(pages.keys() - own.keys())


def csv(table):
    """As text, where no cell begins a formula of a spreadsheet."""
    return table.map(lambda cell: f"'{cell}" if FORMULA.match(str(cell)) else cell).to_csv(index=False)


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
