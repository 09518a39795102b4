"""The pre-test and the post-test, out of teach/tests.toml: the same ten ideas in two clothes.

    [[idea]]                    before = {...} and after = {...}, each with
    name, lesson                question, options {a, b, c, d}, right, reveals {what each wrong option shows}
"""

import ast
import tomllib
from contextlib import suppress

import nbformat
from nbformat import NotebookNode

from course.lesson import ROOT
from course.twins import KERNEL

TITLES = {"before": "Before the course", "after": "After the course"}
NAMES = {"before": "pre_test", "after": "post_test"}
LEAD = """# {title}: ten questions

For each question replace `None` by a letter in quotes, such as `"a"`. Ten minutes. Do not guess for long: leave `None`
where you do not know. It shows what to teach, and it is no examination. Nothing here needs to be run. Save the file,
and hand it in."""


def ideas() -> list[dict]:
    return tomllib.loads((ROOT / "teach" / "tests.toml").read_text(encoding="utf-8"))["idea"]


def names() -> list[str]:
    """The names of a learner's answers, one for each idea: my_01, my_02, ..."""
    return [f"my_{number:02}" for number in range(1, len(ideas()) + 1)]


def notebook(when: str) -> NotebookNode:
    """The test as a notebook to hand out. `when`: "before" or "after"."""
    cells = [nbformat.v4.new_markdown_cell(LEAD.format(title=TITLES[when]), id="lead"),
             nbformat.v4.new_code_cell(f'test = "{when}"', id="which")]
    for name, idea in zip(names(), ideas(), strict=True):
        options = "\n".join(f"- **{letter}**: {text}" for letter, text in sorted(idea[when]["options"].items()))
        cells += [nbformat.v4.new_markdown_cell(f"## {int(name[3:])}\n\n{idea[when]['question'].strip()}\n\n{options}",
                                                id=f"question-{name[3:]}"),
                  nbformat.v4.new_code_cell(f"{name} = None", id=f"answer-{name[3:]}")]
    return nbformat.v4.new_notebook(cells=cells, metadata=KERNEL)


def judged(when: str, statements: list[ast.stmt]) -> list[tuple[str, str, str]]:
    """[(name of the idea, outcome, why)] of the answers in a notebook's statements. Nothing is run."""
    given = {}  # {name: the learner's letter}
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            if isinstance(statement.value, ast.Name):  # the quotes were forgotten
                given[statement.targets[0].id] = statement.value.id
            with suppress(ValueError, TypeError, MemoryError, RecursionError):  # no letter, but a computation
                given[statement.targets[0].id] = ast.literal_eval(statement.value)
    return [(idea["name"], *verdict(idea[when], given.get(name))) for name, idea in zip(names(), ideas(), strict=True)]


def verdict(asked, letter):
    if letter is None:
        return "untried", "Not answered."
    letter = str(letter).strip().lower()
    if letter == asked["right"]:
        return "right", f"Right: {asked['options'][letter]}"
    if letter not in asked["options"]:
        return "wrong", f"{letter!r} is none of the letters."
    return "wrong", f"You chose {letter} ({asked['options'][letter]}). {asked['reveals'][letter]}"
