"""What a reader of the committed notebooks relies on. Nothing here executes a notebook."""

import ast
import functools
import json
import re
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

from course.compare import NOT_SHOWN

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TWINS = sorted((ROOT / "notebooks" / "text").glob("*.py"))
# The beginnings of paths that belong to one machine; in a URL a letter or digit stands before the slash.
MACHINE_PATH = re.compile(
    r"(?<![\w.-])(?:/(?:home|root|Users|work|workspace|mnt|media|srv|scratch|builds|tmp|private|var/folders|opt)/[\w.+-]+"
    r"|[A-Z]:\\{1,2}Users\\)"
)

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def twin_of(path):
    return path.parent / "text" / f"{path.stem}.py"


@functools.cache
def read(path):
    return nbformat.read(path, as_version=4)


def folded(cell):
    return cell.metadata.get("jupyter", {}).get("source_hidden", False)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code" and cell.source.strip()]


def test_every_notebook_has_its_text_twin():
    assert [path.stem for path in NOTEBOOKS] == [path.stem for path in TWINS]
    assert all(re.fullmatch(r"\d\d[a-z]?_\w+", path.stem) for path in NOTEBOOKS)


@each_notebook
def test_text_twin_agrees(path):
    """Where it does not: `scripts/run --in-place NAME` builds the notebook from its twin."""
    twin = jupytext.read(twin_of(path))
    notebook = read(path)
    told, written = (
        [(cell.cell_type, cell.source, cell.metadata.get("tags", []), folded(cell)) for cell in each.cells]
        for each in (notebook, twin)
    )
    assert told == written
    assert notebook.metadata.course == twin.metadata.course
    saved, text = jupytext.writes(notebook, fmt="py:percent"), twin_of(path).read_text(encoding="utf-8")
    assert text.split("# ---\n", 2)[2] == saved.split("# ---\n", 2)[2], "JupyterLab compares the two to the blank line"


@each_notebook
def test_every_cell_was_executed_in_one_run_without_error(path):
    assert [cell.execution_count for cell in code_cells(path)] == list(range(1, len(code_cells(path)) + 1))
    for cell in code_cells(path):
        assert not [output for output in cell.outputs if output.output_type == "error"], cell.source


@each_notebook
def test_its_outputs_were_made_on_a_quiet_machine(path):
    assert read(path).metadata.others <= 0.05, "scripts/run --in-place counts the cores that others took"


@each_notebook
def test_no_output_shows_a_path_of_the_machine(path):
    ours = re.compile("|".join(re.escape(str(place)) for place in (ROOT, Path(sys.prefix).resolve())))
    for cell in read(path).cells:
        for output in cell.get("outputs", []):
            if "data" in output:
                output = output.data | {kind: "" for kind in output.data if kind in ("image/png", "image/jpeg")}
            text = json.dumps(output, ensure_ascii=False)
            found = MACHINE_PATH.search(text) or ours.search(text)
            assert not found, f"{found[0]} in an output of: {cell.source}"


PAGES = [*NOTEBOOKS, *ROOT.glob("*.md"), *(ROOT / "results").rglob("*.md"), *(ROOT / "site").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(page):
    text = page.read_text()
    if page.suffix == ".ipynb":
        text = "\n".join(cell.source for cell in read(page).cells if cell.cell_type == "markdown")
    local = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    assert [link for link in local if not (page.parent / link).exists()] == []


@each_notebook
def test_metadata_is_what_tools_need_and_no_more(path):
    notebook = read(path)
    assert notebook.metadata.kernelspec.name == "python3", "without it JupyterLab asks for a kernel"
    assert set(notebook.metadata) <= {"course", "kernelspec", "language_info", "others"}
    course = notebook.metadata.course
    assert course.seconds > 0 and 0 < course.quick.seconds <= course.seconds
    assert all(set(cell.metadata) <= {"tags", "jupyter"} for cell in notebook.cells)
    assert all(folded(cell) == ("hide-input" in cell.metadata.get("tags", [])) for cell in notebook.cells)


@each_notebook
def test_the_quick_tier_sets_parameters_that_exist(path):
    (parameters,) = [cell for cell in code_cells(path) if "parameters" in cell.metadata.get("tags", [])]
    assigned = {node.id for node in ast.walk(ast.parse(parameters.source))
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assert set(read(path).metadata.course.quick.parameters) <= assigned


def test_the_first_code_cell_is_the_same_everywhere():
    assert {code_cells(path)[0].source for path in NOTEBOOKS} == {"from course import lesson; lesson.begin()"}


@each_notebook
def test_no_run_is_committed_that_could_not_show_its_point(path):
    for cell in code_cells(path):
        for output in cell.outputs:
            words = output.get("data", {}).get("text/markdown", "")
            assert NOT_SHOWN not in words and "**disturbed**" not in words, words


@each_notebook
def test_predictions_are_asked_and_not_filled_in(path):
    for cell in code_cells(path):
        for name, value in re.findall(r"^(my_\w+) = (.*)", cell.source, re.MULTILINE):
            assert value.split("  #")[0] == "None", f"{name} in: {cell.source}"


@each_notebook
def test_a_lesson_says_what_it_takes_and_where_it_leads(path):
    notebook = read(path)
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    course = notebook.metadata.course
    assert f"**Time.** About {course.minutes} minutes for you, {-(-course.seconds // 60)} for the machine." in texts[0]
    assert re.search(r"\[.+\]\(\d\d[a-z]?_\w+\.ipynb\)", "\n".join(texts[-2:])) or path == NOTEBOOKS[-1]


def test_notebooks_stay_small():
    sizes = {path.name: path.stat().st_size for path in (ROOT / "notebooks").rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 10_000_000
    assert all(size < 2_000_000 for size in sizes.values()), sizes
