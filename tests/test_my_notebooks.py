"""scripts/my_notebooks.py: copies of one's own, made once, which no change of the course touches."""

import ast
import re

import nbformat
import pytest

from course.lesson import notebooks
from scripts import my_notebooks
from tests import runner

NAME = "05_shards.ipynb"


@pytest.fixture
def folders(tmp_path):
    """(the course's notebooks, the learner's, a function that publishes a lesson)"""
    lessons, own = tmp_path / "notebooks", tmp_path / "mine"
    lessons.mkdir()

    def publish(*sources):
        outputs = [nbformat.v4.new_output("stream", text="the answer")]
        cells = [nbformat.v4.new_code_cell(source, execution_count=1, outputs=outputs) for source in sources]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), lessons / NAME)

    publish("my_guess = None", "check.shard(my_shard)")
    assert list(my_notebooks.update(lessons, own)) == []
    return lessons, own, publish


def sources(path):
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


def test_a_copy_is_the_course_s_without_outputs_and_is_made_once(folders):
    lessons, own, _ = folders
    made = nbformat.read(own / NAME, as_version=4)
    assert sources(own / NAME) == sources(lessons / NAME)
    assert not any(cell.outputs or cell.execution_count for cell in made.cells)
    made.cells[0].source = "my_guess = 3"
    nbformat.write(made, own / NAME)
    assert list(my_notebooks.update(lessons, own)) == [] and sources(own / NAME)[0] == "my_guess = 3"


def test_a_changed_lesson_is_put_beside_the_copy_and_said_once(folders):
    lessons, own, publish = folders
    for number, name in enumerate(["05_shards.new.ipynb", "05_shards.new-2.ipynb", "05_shards.new-3.ipynb"]):
        before = {path: path.read_bytes() for path in own.iterdir()}
        publish(f"my_guess = {number}", "check.shard(my_shard)")
        [line] = my_notebooks.update(lessons, own)
        assert "has changed" in line and name in line and list(my_notebooks.update(lessons, own)) == []
        assert sources(own / name)[0] == f"my_guess = {number}"
        assert all(path.read_bytes() == content for path, content in before.items()), "a learner may work in each"


@pytest.mark.parametrize("mark", [[["id", "0123456789abcdef"]], None], ids=["of an earlier version", "none"])
def test_of_a_copy_with_another_mark_nobody_says_that_the_course_has_changed(folders, mark):
    lessons, own, _ = folders
    old = nbformat.read(own / NAME, as_version=4)
    old.metadata[my_notebooks.MADE_OF] = mark
    nbformat.write(old, own / NAME)
    before = (own / NAME).read_bytes()
    [line] = my_notebooks.update(lessons, own)
    assert "changed" not in line and "05_shards.new.ipynb" in line and (own / NAME).read_bytes() == before
    assert list(my_notebooks.update(lessons, own)) == []


def test_what_a_path_leaves_out_is_folded(tmp_path):
    (tmp_path / "notebooks").mkdir()
    texts = ("# 05", "## Shard", "### Exercise: shard", "## Epochs", "text\n\n## Evaluation", "### Padding",
             "## Streams\n\nmore")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text) for text in texts]),
                   tmp_path / "notebooks" / NAME)
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "notebooks/06_other.ipynb")
    slots = [{"what": "a talk"}, {"lesson": "05", "sections": ["Shard"]}, {"lesson": "05", "sections": ["Padding"]}]
    assert list(my_notebooks.update(tmp_path / "notebooks", tmp_path / "own/path", slots)) == []
    [made] = (tmp_path / "own/path").iterdir()
    cells = nbformat.read(made, as_version=4).cells
    folded = [cell.source.partition("\n")[0] for cell in cells if cell.metadata.get("jp-MarkdownHeadingCollapsed")]
    assert folded == ["## Epochs", "## Streams"]  # "Evaluation" begins in the cell of a text, and holds "Padding"
    *_, last = runner.shown(nbformat.v4.new_notebook(cells=cells))
    assert last.source == f"## Streams\n\n{my_notebooks.LEFT_OUT}"


def names(source):
    """({what the cell defines}, {what it reads}), each (whether on live ranks, name)."""
    if re.match("%%(mine|writefile)", source):
        return set(), set()
    lines = source.replace("\\\n", " ").splitlines()
    nodes = list(ast.walk(ast.parse("\n".join(re.sub("^( *)[!%].*", r"\1pass", line) for line in lines))))
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    read |= {name for line in lines if line[:1] == "!" for name in re.findall(r"{(\w+)", line)}
    defined = {getattr(node, "id", getattr(node, "arg", getattr(node, "name", None))) for node in nodes
               if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store)}
    defined |= {(each.asname or each.name).partition(".")[0] for node in nodes
                if isinstance(node, ast.Import | ast.ImportFrom) for each in node.names}
    live = source.startswith("%%px")
    return {(live, name) for name in defined}, {(live, name) for name in read - defined | ({"dist"} if live else set())}


@pytest.mark.parametrize("path", my_notebooks.plans())
def test_no_cell_of_a_path_needs_what_only_folded_ones_define(path):
    slots = [slot for slot in my_notebooks.plans()[path] if "lesson" in slot]
    for number in {slot["lesson"] for slot in slots}:
        notebook = nbformat.read(notebooks()[number], as_version=4)
        my_notebooks.fold(notebook, [slot for slot in slots if slot["lesson"] == number])
        visible, given, hidden = {cell.id for cell in runner.shown(notebook)}, set(), set()
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            defined, read = names(cell.source)
            if "lesson.live_ranks(" in cell.source:
                defined.add((True, "dist"))  # ranks that are there have it
            if cell.id in visible:
                assert not (read & hidden) - given, (number, cell.source)
            (given if cell.id in visible else hidden).update(defined)
