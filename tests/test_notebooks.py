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


def test_the_search_for_paths_finds_them_and_spares_links():
    for shown in ("/home/ann/x", "File /root/x.py", "file:///Users/ann/", '"/tmp/torchelastic_1"', "C:\\Users\\ann"):
        assert MACHINE_PATH.search(shown), shown
    for spared in ("https://example.org/home/page", "results/work/run.jsonl", "/dev/shm", "tmp/x", "data/home/x"):
        assert not MACHINE_PATH.search(spared), spared


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
    first = {code_cells(path)[0].source for path in NOTEBOOKS}
    assert len(first) <= 1
    assert all(source.endswith("lesson.begin()") and source.count("\n") == 2 for source in first)


# ------------------------------------------------------------------- what a learner sees in a lesson: the subject

# What a function in a visible cell may not touch: tables, text and axes belong into folded cells and show.py
SHOWING = {"Markdown", "HTML", "display", "print", "plt", "ax", "axes", "fig", "lesson", "plots"}
AXES_WORK = re.compile(r"^ *(?:ax|axes|fig|plt)(?:\[.*\])?\.(?!show\(|subplots\()", re.MULTILINE)


def parsed(cell):
    """The cell's Python: `...` for a !command, with the lines in which it goes on, and for a %magic. A %%magic cell is
    none of the lesson's Python, but for a file that it writes."""
    if cell.source.startswith("%%") and not cell.source.startswith("%%writefile"):
        return ast.parse("")
    return ast.parse(re.sub(r"^([ \t]*)[!%](?:.*\\\n)*.*|(?<== )!.*", r"\1...", cell.source, flags=re.MULTILINE))


def visible_lines(path):
    return [line for cell in code_cells(path) for line in cell.source.splitlines() if line.strip()]


def test_the_performance_notebook_starts_eight_ranks_as_a_reader_would():
    (performance,) = [path for path in NOTEBOOKS if path.stem == "07_performance"]
    assert any(line.startswith("!torchrun --nproc_per_node=8 main.py ") for line in visible_lines(performance))


@each_notebook
def test_no_line_of_code_is_longer_than_a_hundred_characters(path):
    assert [line for line in visible_lines(path) if len(line) > 100] == []


@each_notebook
def test_visible_cells_define_no_function_for_tables_text_or_axes(path):
    for cell in code_cells(path):
        if folded(cell):
            continue
        showing = SHOWING - {"print"} if cell.source.startswith("%%writefile") else SHOWING  # a program prints
        for node in ast.walk(parsed(cell)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
                used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)} & showing
                assert not used, f"{used} in a function of: {cell.source}"
        assert not AXES_WORK.search(cell.source), cell.source


@each_notebook
def test_figures_are_numbered_and_shown_with_a_caption(path):
    """Each picture of a cell is followed by its number, and no run is committed that could not show its point."""
    captions = []
    for cell in code_cells(path):
        assert "plt.show(" not in cell.source, cell.source
        shown = [output.data for output in cell.outputs if "data" in output]
        words = [data["text/markdown"] for data in shown if "text/markdown" in data]
        captions += [word for word in words if word.startswith("**Figure ")]
        assert any("image/png" in data for data in shown) <= any(word in captions for word in words), cell.source
        assert not any(NOT_SHOWN in word or "**disturbed**" in word for word in words), words
    assert [int(re.match(r"\*\*Figure (\d+)\.\*\* \S", caption)[1]) for caption in captions] == list(
        range(1, len(captions) + 1))


@each_notebook
def test_predictions_are_asked_and_not_filled_in(path):
    for cell in code_cells(path):
        for name, value in re.findall(r"^(my_\w+) = (.*)", cell.source, re.MULTILINE):
            assert value.split("  #")[0] == "None", f"{name} in: {cell.source}"


@each_notebook
def test_a_lesson_says_what_it_asks_and_takes_and_where_it_leads(path):
    notebook = read(path)
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    course, opening, closing = notebook.metadata.course, texts[0], "\n".join(texts[-2:])
    for part in ("**The question.**", "**You will be able to**", "**You need**"):
        assert part in opening
    assert f"**Time.** About {course.minutes} minutes for you, {-(-course.seconds // 60)} for the machine." in opening
    remember = closing.partition("## What to remember")[2].partition("**Next:**")
    assert re.findall(r"^(\d)\. ", remember[0], re.MULTILINE) == ["1", "2", "3"]
    assert re.search(r"\[.+\]\(\d\d[a-z]?_\w+\.ipynb\)", remember[2]) or path == NOTEBOOKS[-1]


def test_notebooks_stay_small():
    sizes = {path.name: path.stat().st_size for path in (ROOT / "notebooks").rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 10_000_000
    assert all(size < 2_000_000 for size in sizes.values()), sizes
