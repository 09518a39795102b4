"""scripts/learner: a copy that teaches and judges as the course does, and shows no solution."""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course.lesson import ROOT, notebooks
from lessons.l04_collectives import check as lesson_04
from lessons.l05_distributed_sampler import check as lesson_05
from lessons.l10_launchers import check as lesson_10
from lessons.l11_fault_tolerance import check as lesson_11
from lessons.l12_break_it.gallery_table import anchor
from teach import handed_in, learner_copy
from tests import runner, test_arrows


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "ada"
    learner_copy.make([folder])
    (folder / "results" / "live").mkdir(exist_ok=True)
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
    for name in learner_copy.LEFT_OUT:
        assert (ROOT / name).exists(), f"{name} is no more: take it from LEFT_OUT"
    for name in names & set(learner_copy.tracked()):
        assert os.access(copy / name, os.X_OK) == os.access(ROOT / name, os.X_OK), name


def test_its_notebooks_are_the_lessons_without_outputs_and_calls_for_solutions(copy):
    for path in notebooks().values():
        assert not handed_in.paper(handed_in.read(copy / "notebooks" / path.name), copy).own, "nobody wrote in it yet"
        ours, theirs = (nbformat.read(file, as_version=4) for file in (path, copy / "notebooks" / path.name))
        for cell, copied in zip(ours.cells, theirs.cells, strict=True):
            assert not copied.get("outputs") and copied.get("execution_count") is None
            assert "solution()" not in copied.source
            assert set(copied.source.splitlines()) <= set(cell.source.splitlines())
            assert copied.source == cell.source.rstrip("\n") or "solution()" in cell.source


def test_no_file_shows_a_solution(copy):
    texts = {name: (copy / name).read_text(encoding="utf-8", errors="replace") for name in files(copy)
             if not name.startswith("results/")}
    for path in ROOT.glob("lessons/l*/check.py"):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        solutions = {node.value.id for node in ast.walk(tree)
                     if isinstance(node, ast.keyword) and node.arg == "solution" and isinstance(node.value, ast.Name)}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name in solutions:
                body = "\n".join(ast.get_source_segment(source, line) for line in node.body)
                assert not [name for name, text in texts.items() if body in text], (path, node.name)
    assert (ROOT / "examples/minimal_ddp.py").read_text().split('"""')[2][:400] not in "".join(texts.values())


def test_nothing_in_it_imports_or_links_to_a_file_that_it_lacks(copy):
    ours, theirs = test_arrows.our_modules(ROOT), test_arrows.our_modules(copy)
    for name in theirs:  # a packed module imports what its source imports
        for line, module, _ in test_arrows.imports(name, ours[name], ours):
            assert module not in ours or module in theirs, f"{ours[name]}:{line} imports {module}"
    texts = readable(copy)
    rooms = "scripts|tests|teach|course|notebooks|site|results/recorded"
    for name, text in texts.items():
        for target, part in re.findall(r"\]\((?!\w+:)([^)#\s\\]*)#?([^)\s]*)\)", text):
            path = (copy / name).parent.joinpath(target).resolve() if target else copy / name
            assert path.exists(), f"{name} links to {target}"
            headings = re.findall(r"^#+ +(.+)", texts.get(path.relative_to(copy).as_posix(), ""), re.M)
            assert not part or part in map(anchor, headings), f"{name} links to {target}#{part}"
        for path in re.findall(rf"(?<![\w/.-])(?:{rooms})/[\w./-]*\w", text):
            assert (copy / path).exists(), f"{name} names {path}"


def readable(copy):
    """{name: text} of the pages for learners."""
    texts = {name: (copy / name).read_text(encoding="utf-8") for name in files(copy)
             if name.endswith((".ipynb", ".md")) and not name.startswith("results/")}
    return {name: "\n".join(cell.source for cell in nbformat.reads(text, 4).cells if cell.cell_type == "markdown")
            if name.endswith(".ipynb") else text for name, text in texts.items()}


ANSWERED = """
import json
from lessons.l04_collectives import check as lesson_04
from lessons.l05_distributed_sampler import check as lesson_05
from lessons.l10_launchers import check as lesson_10
from lessons.l11_fault_tolerance import check as lesson_11
from lessons.l12_break_it import check as lesson_12
from answers import blocks, delete_first, my_shard
import inspect
inspect.getsource(lesson_05.WholeStream)  # as a cell of lesson 05 does
lesson_05.shard.solution()
print(json.dumps([
    lesson_05.shard.verdict(None), lesson_05.shard.verdict(my_shard), lesson_05.shard.verdict(blocks),
    lesson_11.never_half.verdict(delete_first), lesson_05.gradient.verdict("results/live/backward.py"),
    [*lesson_04.choices.answer.values(), *lesson_10.failures.answer.values()],
    *map(lesson_04.choices.verdict, CHOICES), *map(lesson_10.failures.verdict, CAUSES)]))
"""


def test_an_answer_in_it_is_judged_as_in_the_course(copy):
    """A function, a function whose text its check reads, and a file on ranks: they meet the same mistakes, which a
    packed module must hand to forked processes by name."""
    (copy / "results" / "live" / "answers.py").write_text("import math, os\n\n\n" + "\n\n".join(map(inspect.getsource, (
        lesson_05.my_shard, lesson_05.blocks, lesson_11.delete_first))))
    (copy / "results" / "live" / "backward.py").write_text(
        "from torch.nn.functional import cross_entropy\n\n\n"
        + inspect.getsource(lesson_05.mean_of_own).replace("mean_of_own", "backward"))
    choices, causes = ([each.answer, *each.mistakes.values()] for each in (lesson_04.choices, lesson_10.failures))
    done = subprocess.run([sys.executable, "-c", f"CHOICES, CAUSES = {choices}, {causes}{ANSWERED}"], cwd=copy,
                          env=runner.environment(PYTHONPATH=f"{copy}:{copy}/results/live"), timeout=runner.LIMIT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    solution, verdicts = done.stdout.splitlines()
    untried, right, wrong, read, gradient, hashes, *given = map(tuple, json.loads(verdicts))
    assert given == [*map(lesson_04.choices.verdict, choices), *map(lesson_10.failures.verdict, causes)]
    assert [len(word) for word in hashes] == 9 * [64], "of an answer of one word there is a hash alone"
    assert "ask whoever teaches you" in solution.lower() and "range(" not in solution
    assert [untried, right, wrong] == [lesson_05.shard.verdict(answer) for answer in
                                       (None, lesson_05.my_shard, lesson_05.blocks)]
    assert read[0] == "wrong" and mistake(lesson_11.never_half, lesson_11.delete_first) in read[1]
    assert gradient[0] == "wrong" and mistake(lesson_05.gradient, lesson_05.mean_of_own) in gradient[1]


def mistake(exercise, answer):
    return next(message for message, wrong in exercise.mistakes.items() if wrong is answer)


def test_set_up_in_it_takes_the_environment_of_the_course_that_it_was_made_of(copy):
    """As a class on one machine shares it."""
    python = Path(sys.executable)
    done = subprocess.run([copy / "scripts" / "setup", "--print-python"], capture_output=True, text=True, timeout=60,
                          env=runner.environment(PYTHONPATH=str(ROOT), VIRTUAL_ENV=sys.prefix,
                                                 PATH=f"{python.parent}:{os.environ['PATH']}",
                                                 COURSE_DATA=os.environ.get("COURSE_DATA") or str(ROOT / "data")))
    assert (Path(done.stdout.strip()).parent, done.stderr) == (python.parent, "") and not (copy / ".venv").exists()


def test_a_lesson_runs_in_it_and_writes_to_no_shared_folder(copy, tmp_path):
    """With data and an environment that nobody can write to (where bubblewrap can see to it)."""
    source, data = Path(ROOT, os.environ.get("COURSE_DATA") or "data").resolve(), tmp_path / "data"
    data.mkdir()
    for name in ("cifar10.pt", "mnist.pt"):
        (data / name).symlink_to((source / name).resolve(strict=True))
    shared = [str(path) for path in (source, data, sys.prefix, sys.base_prefix)]
    read_only = ["bwrap", "--dev-bind", "/", "/", *(word for path in shared for word in ("--ro-bind", path, path))]
    lesson = copy / "notebooks" / notebooks()["00"].name
    done = subprocess.run([*(read_only if shutil.which("bwrap") else []), sys.executable, "-m", "papermill", "-k",
                           "python3", lesson, "results/live/done.ipynb", "-p", "samples", "320", "-p", "epochs", "2",
                           "-p", "tested", "100"], cwd=copy,
                          env=runner.environment(COURSE_DATA=str(data), PYTHONPATH=None), capture_output=True,
                          text=True, timeout=2 * runner.LIMIT)
    assert done.returncode == 0, done.stderr[-3000:]
    outputs = [output for cell in nbformat.read(copy / "results/live/done.ipynb", as_version=4).cells
               for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_a_folder_with_something_in_it_is_refused_in_one_line_and_nothing_is_made(tmp_path, monkeypatch, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["learner", str(tmp_path / "new"), str(tmp_path / "full")])
    with pytest.raises(SystemExit) as end:
        learner_copy.main()
    line = capsys.readouterr().err
    assert end.value.code == 2 and "not empty" in line and line.count("\n") == 1
    assert files(tmp_path) == {"full/mine.txt"}
