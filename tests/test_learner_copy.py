"""scripts/learner: a copy that teaches, judges and explains as the course does, and holds no solution."""

import ast
import importlib
import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest

from course import exercise as checks
from course.lesson import ROOT
from lessons.l05_distributed_sampler import check as lesson_05
from lessons.l12_break_it.gallery_table import anchor
from teach import handed_in, learner_copy, questions
from tests import runner

LESSONS = sorted(path.stem for path in ROOT.glob("lessons/l*/check.py"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "ada"
    learner_copy.make([folder])
    return folder


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts}


def exercises(module):
    return {name: thing for name, thing in vars(module).items() if isinstance(thing, checks.Exercise)}


def in_copy(copy, *arguments, **env):
    return subprocess.run([sys.executable, *arguments], cwd=copy, env=runner.environment(PYTHONPATH=str(copy), **env),
                          capture_output=True, text=True, timeout=runner.LIMIT)


def test_it_has_all_that_is_not_the_teacher_s(copy):
    tracked = set(learner_copy.tracked())
    out = {name for name in tracked if name.startswith(tuple(f"{folder}/" for folder in learner_copy.LEFT_OUT))
           or name in learner_copy.LEFT_OUT}
    tests = {f"notebooks/{name}.ipynb" for name in questions.NAMES.values()}
    assert files(copy) == tracked - out | tests | {"README.md"}
    assert "shows it" not in (copy / "AGENTS.md").read_text(), "a tutor has no solution to point to"
    for name in learner_copy.LEFT_OUT:
        assert (ROOT / name).exists(), f"{name} is no more: take it from LEFT_OUT"
    for name in tracked - out:
        assert os.access(copy / name, os.X_OK) == os.access(ROOT / name, os.X_OK), name


def test_notebooks_are_the_lessons_without_outputs_and_calls_for_solutions(copy):
    for path in handed_in.lessons().values():
        ours, theirs = (nbformat.read(file, as_version=4) for file in (path, copy / "notebooks" / path.name))
        assert len(ours.cells) == len(theirs.cells)
        for cell, copied in zip(ours.cells, theirs.cells, strict=True):
            assert not copied.get("outputs") and copied.get("execution_count") is None
            kept = [line for line in cell.source.splitlines() if not re.match(r"(# \w+\.\w+\.|`)solution\(\)", line)]
            assert copied.source.splitlines() == kept
            assert "solution()" not in copied.source


def test_no_solution_is_in_it(copy):
    """Neither as text in a file, nor in what the checks unpack."""
    texts = {name: (copy / name).read_text(encoding="utf-8", errors="replace") for name in files(copy)
             if not name.startswith("results/")}
    codes = {name: code_of(text) for name, text in texts.items()}
    for lesson in LESSONS:
        unpacked, _ = learner_copy.stripped((ROOT / "course" / "checks" / f"{lesson}.py").read_text())
        functions = {node.name for node in ast.walk(ast.parse(unpacked)) if isinstance(node, ast.FunctionDef)}
        for name, exercise in exercises(importlib.import_module(f"course.exercise.{lesson}")).items():
            if inspect.isfunction(exercise.answer):
                source = inspect.getsource(exercise.answer)
                body = source.split("\n", 1)[1].strip()
                assert exercise.answer.__name__ not in functions, (lesson, name)
                assert body not in unpacked, (lesson, name)
                assert not [file for file, text in texts.items() if source.strip() in text], (lesson, name)
                lines = [line for line in code_of(source).splitlines() if not line.startswith(("@", "def "))]
                half = max(2, (len(lines) + 1) // 2)  # of one, in a row, would do
                parts = ["\n".join(lines[place:place + half]) + "\n" for place in range(len(lines) - half + 1)]
                assert not [file for file, text in codes.items() if any(part in text for part in parts)], (lesson, name)
    program = (ROOT / "scripts" / "lessons" / "minimal_ddp.py").read_text()
    assert not [file for file, text in texts.items() if program.split('"""')[2][:400] in text]


def code_of(text):
    """Its lines, without what stands to their left, and without comments."""
    lines = [line.partition("  #")[0].strip() for line in text.splitlines()]
    return "".join(f"{line}\n" for line in lines if line)


def test_a_check_that_needs_its_solution_makes_no_copy():
    with pytest.raises(ValueError, match="reaches the solution my_answer"):
        learner_copy.stripped("def my_answer():\n    return 1\n\n@exercise(solution=my_answer, hint='', mistakes={})\n"
                              "def check(attempt):\n    '''Right.'''\n    assert attempt() == my_answer()\n")


@pytest.mark.parametrize("lesson", LESSONS)
def test_checks_judge_and_explain_as_the_course_s_own(copy, lesson, capsys):
    """What needs no ranks, here: a solution, each typical mistake and a stub get the same words."""
    packed = types.ModuleType(f"packed_{lesson}")
    packed.__file__ = str(copy / "course" / "checks" / f"{lesson}.py")
    exec(Path(packed.__file__).read_text(), vars(packed))
    own = exercises(importlib.import_module(f"course.exercise.{lesson}"))
    assert set(exercises(packed)) == set(own)
    for name, exercise in own.items():
        copied = getattr(packed, name)
        assert copied.verdict(None) == ("untried", "Not tried yet.") and copied.hint_text == exercise.hint_text
        copied.solution()
        assert "No solution stands in this copy" in capsys.readouterr().out
        if "answers" not in handed_in.used(ast.parse(inspect.getsource(exercise.check)).body[0]) and not {
                "alone", "together"} & handed_in.used(ast.parse(inspect.getsource(exercise.check)).body[0]):
            for attempt in (exercise.answer, *exercise.mistakes.values()):
                assert copied.verdict(attempt) == exercise.verdict(attempt), name


def test_checks_on_ranks_judge_in_the_copy(copy):
    imports = "import torch\nimport torch.distributed as dist\nfrom torch.nn.functional import cross_entropy\n\n\n"
    for name, answer in (("right.py", lesson_05.backward), ("wrong.py", lesson_05.mean_of_own)):
        text = inspect.getsource(answer).replace(f"def {answer.__name__}(", "def backward(")
        (copy / "results" / "live").mkdir(exist_ok=True)
        (copy / "results" / "live" / name).write_text(imports + text)
    done = in_copy(copy, "-c", "from course.exercise import lesson_05 as check\n"
                   "check.gradient('results/live/right.py'); check.gradient('results/live/wrong.py')\n"
                   "check.gradient.solution()")
    right, wrong, solution = done.stdout.split("\n", 1)[0], done.stdout, done.stdout.splitlines()[-1]
    assert done.returncode == 0 and right.startswith("Right. "), done.stderr
    assert "the mean of the ranks' means" in " ".join(wrong.split()) and "No solution stands" in solution


def test_all_that_is_left_can_be_imported_and_every_link_leads_somewhere(copy):
    modules = [name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in sorted(files(copy))
               if re.fullmatch(r"(course/.+|\w+)\.py", name) and not name.endswith(("main.py", "rank.py"))]
    done = in_copy(copy, "-c", f"import importlib\nfor name in {modules!r}: importlib.import_module(name)")
    assert done.returncode == 0, done.stderr
    texts = told(copy)
    for name, text in texts.items():
        for target, part in re.findall(r"\]\((?!\w+:)([^)#\s\\]*)#?([^)\s]*)\)", text):
            path = (copy / name).parent.joinpath(target).resolve() if target else copy / name
            assert path.exists(), f"{name} links to {target}"
            headings = re.findall(r"^#+ +(.+)", texts.get(path.relative_to(copy).as_posix(), ""), re.M)
            assert not part or part in map(anchor, headings), f"{name} links to {target}#{part}"


def told(copy):
    """{name: text} of what a learner reads."""
    texts = {name: (copy / name).read_text(encoding="utf-8") for name in files(copy)
             if name.endswith((".ipynb", ".md")) and not name.startswith("results/")}
    return {name: "\n".join(cell.source for cell in nbformat.reads(text, 4).cells if cell.cell_type == "markdown")
            if name.endswith(".ipynb") else text for name, text in texts.items()}


def test_nothing_that_is_read_in_it_names_what_is_not_there(copy):
    rooms = "scripts|tests|teach|course|notebooks|site|results/recorded"
    for name, text in told(copy).items():
        for path in re.findall(rf"(?<![\w/.-])(?:{rooms})/[\w./-]*\w", text):
            assert (copy / path).exists(), f"{name} names {path}"


def test_three_learners_at_once_hinder_each_other_by_nothing_but_speed(copy, tmp_path):
    """The same lesson in the same minute, with one environment and one data folder that nobody can write to (where
    bubblewrap can see to it)."""
    source, data = Path(ROOT, os.environ.get("COURSE_DATA") or "data").resolve(), tmp_path / "data"
    data.mkdir()
    for name in ("cifar10.pt", "mnist.pt"):
        (data / name).symlink_to((source / name).resolve(strict=True))
    learners = [tmp_path / name for name in ("ada", "ben", "cleo")]
    for learner in learners:
        shutil.copytree(copy, learner)
        (learner / "results" / "live").mkdir(exist_ok=True)  # papermill makes no folder for what it writes
    read_only = ["bwrap", "--dev-bind", "/", "/", *(word for path in (source, data, sys.prefix, sys.base_prefix)
                                                    for word in ("--ro-bind", str(path), str(path)))]
    read_only = read_only if shutil.which("bwrap") else []
    for path in (source, data, sys.prefix) if read_only else ():
        tried = subprocess.run([*read_only, "touch", Path(path, "new")], capture_output=True, text=True, timeout=30)
        assert "Read-only file system" in tried.stderr
    path = handed_in.lessons()["00"]
    quick = nbformat.read(path, as_version=4).metadata.course.quick.parameters

    def learn(folder):
        parameters = [word for name, value in quick.items() for word in ("-p", name, str(value))]
        return subprocess.run([*read_only, sys.executable, "-m", "papermill", "-k",
                               "python3", f"notebooks/{path.name}", "results/live/done.ipynb", *parameters],
                              cwd=folder, env=runner.environment(COURSE_DATA=str(data), PYTHONPATH=None),
                              capture_output=True, text=True, timeout=4 * runner.LIMIT)

    with ThreadPoolExecutor(3) as pool:
        for learner, done in zip(learners, pool.map(learn, learners), strict=True):
            assert done.returncode == 0, (learner, done.stderr[-3000:])
    assert sorted(path.name for path in data.iterdir()) == ["cifar10.pt", "mnist.pt"]
    written = [{name for name in files(learner) if name.startswith("results/live/")} for learner in learners]
    assert written[0] == written[1] == written[2] and len(written[0]) > 1


def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    monkeypatch.chdir(ROOT)
    for arguments, said in (([], "DIR"), ([tmp_path / "new", tmp_path / "full"], "not empty"), ([""], "empty")):
        monkeypatch.setattr(sys, "argv", ["learner", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            runpy.run_path("teach/make_learner_copies.py")["main"]()
        err = capsys.readouterr().err
        assert end.value.code == 2 and said in err and len(err.strip().splitlines()) == 1
    assert files(tmp_path) == {"full/mine.txt"}
