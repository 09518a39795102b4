"""scripts/learner: a copy that teaches and judges as the course does, and whose notebooks show no solution."""

import ast
import inspect
import json
import re
import subprocess
import sys

import nbformat
import pytest

from course.lesson import ROOT, notebooks
from lessons.l05_distributed_sampler import check as lesson_05
from teach import handed_in, learner_copy
from tests import runner, test_arrows


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "ada"
    learner_copy.make([folder])
    return folder


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts}


def test_it_has_the_course_and_nothing_of_the_teacher(copy):
    names = files(copy)
    assert {"main.py", "scripts/lab", "notebooks/pre_test.ipynb", "notebooks/post_test.ipynb", "README.md",
            "lessons/l05_distributed_sampler/check.py", *(f"notebooks/{path.name}" for path in
                                                          notebooks().values())} <= names
    assert not [name for name in names if re.search(r"^(teach|tests)/|/teach\.md$|/test_\w+\.py$", name)]


def test_its_notebooks_have_no_outputs_and_ask_for_no_solution(copy):
    for number, path in notebooks().items():
        theirs = nbformat.read(copy / "notebooks" / path.name, as_version=4)
        assert not any(cell.get("outputs") or "solution()" in cell.source for cell in theirs.cells)
        assert handed_in.paper(theirs, number, copy).own == [], "nobody wrote in it yet"


@pytest.mark.weekly
def test_no_cell_of_its_notebooks_is_a_solution(copy):
    texts = [cell.source for path in notebooks().values()
             for cell in nbformat.read(copy / "notebooks" / path.name, as_version=4).cells]
    for path in [*ROOT.glob("lessons/l*/check.py"), *ROOT.glob("lessons/l*/solution.py")]:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        solutions = {node.value.id for node in ast.walk(tree)
                     if isinstance(node, ast.keyword) and node.arg == "solution" and isinstance(node.value, ast.Name)}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and (node.name in solutions or path.stem == "solution"):
                body = "\n".join(ast.get_source_segment(source, line) for line in node.body)
                assert not [text for text in texts if body in text], (path, node.name)
    assert not [text for text in texts if (ROOT / "examples/minimal_ddp.py").read_text().split('"""')[2][:400] in text]


def test_nothing_in_it_imports_or_links_to_a_file_that_it_lacks(copy):
    ours, theirs = test_arrows.our_modules(ROOT), test_arrows.our_modules(copy)
    for name in theirs:  # a packed module imports what its source imports
        for line, module, *_ in test_arrows.imports(name, ours[name], ours):
            assert module not in ours or module in theirs, f"{ours[name]}:{line} imports {module}"
    for name in files(copy):
        if name.endswith((".ipynb", ".md")) and not name.startswith("results/"):
            text = (copy / name).read_text(encoding="utf-8")
            if name.endswith(".ipynb"):
                text = "\n".join(cell.source for cell in nbformat.reads(text, 4).cells if cell.cell_type == "markdown")
            for target in re.findall(r"\]\((?!\w+:)([^)#\s\\]+)", text):
                assert (copy / name).parent.joinpath(target).exists(), f"{name} links to {target}"


ANSWERED = """
import json
from lessons.l05_distributed_sampler import check
from answers import blocks, shard
print(json.dumps([check.shard.verdict(None), check.shard.verdict(shard), check.shard.verdict(blocks),
                  check.evaluate.verdict("evaluate.py")]))
"""


@pytest.mark.weekly
def test_an_answer_in_it_is_judged_as_in_the_course(copy, tmp_path):
    """A packed module hands its mistakes to forked processes by name."""
    (tmp_path / "answers.py").write_text("import torch\n\n\n" + "\n\n".join(map(inspect.getsource, (
        lesson_05.our_shard, lesson_05.blocks))))
    reason, own = list(lesson_05.evaluate.mistakes.items())[3]  # of its own images; an edit of the solution's text
    (tmp_path / "evaluate.py").write_text(f"import torch\n\nBATCH = 250\n\n\n{own.args[1]}")
    done = subprocess.run([sys.executable, "-c", ANSWERED], cwd=tmp_path, timeout=runner.LIMIT, capture_output=True,
                          env=runner.environment(PYTHONPATH=f"{copy}:{tmp_path}"), text=True)
    assert done.returncode == 0, done.stderr
    *of_shard, evaluated = map(tuple, json.loads(done.stdout))
    assert of_shard == [lesson_05.shard.verdict(answer) for answer in (None, lesson_05.our_shard, lesson_05.blocks)]
    assert evaluated[0] == "wrong" and reason in evaluated[1]


def test_a_folder_with_something_in_it_is_refused_in_one_line_and_nothing_is_made(tmp_path, monkeypatch, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["learner", str(tmp_path / "new"), str(tmp_path / "full")])
    with pytest.raises(SystemExit) as end:
        learner_copy.main()
    assert end.value.code == 2 and capsys.readouterr().err.count("\n") == 1
    assert files(tmp_path) == {"full/mine.txt"}
