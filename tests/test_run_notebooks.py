"""scripts/run, on tiny courses of their own, and the notebook of the template: real kernels, no network."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jupytext
import nbclient
import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course import twins
from tests import runner

ROOT = Path(__file__).resolve().parent.parent
FIRST_CELL = """\
import sys
sys.path[:0] = [".", ".."]
from course import lesson; lesson.begin()
"""
TWIN = (
    "# ---\n# jupyter:\n#   course: {seconds: 5}\n# ---\n\n# %% [markdown]\n# # A title\n\n# %%\n"
    + FIRST_CELL
    + '\n# %% tags=["parameters"]\nepochs = 3\n\n# %%\nprint("one", flush=True)\nprint("epochs", epochs)\n'
)


def run(*command, cwd, **changes):
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=environment(cwd, **changes), capture_output=True, text=True, timeout=120)


def environment(course, **changes):
    """This process' environment, in which the Python that runs the tests has the tiny course installed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"VIRTUAL_ENV": sys.prefix, "PATH": path, "PYTHONPATH": str(course)} | changes


def make_course(folder):
    """The least that scripts/run needs, with data that look prepared."""
    rooms = (path.relative_to(ROOT) for room in ("course", "trainer") for path in ROOT.glob(f"{room}/*.py"))
    for name in ["CITATION.cff", "CHANGELOG.md", "scripts/setup", "scripts/run", "scripts/run_notebooks.py",
                 "scripts/notebook_runs.py", "scripts/site", "lessons/start/train.py", "lessons/start/train_gpt.py",
                 *rooms]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    for place in ("data", "notebooks/text"):
        (folder / place).mkdir(parents=True)
    for empty in ("data/cifar10.pt", "data/mnist.pt", "pyproject.toml"):
        (folder / empty).touch()
    return folder


def add_notebook(folder, name, /, *cells, **metadata):
    tagged = [new_code_cell(source, metadata=dict(tags=tags)) for source, tags in cells]
    notebook = new_notebook(cells=[new_markdown_cell("# A notebook"), new_code_cell(FIRST_CELL), *tagged])
    notebook.metadata.update(metadata, kernelspec={"name": "python3", "display_name": "Python 3", "language": "python"})
    nbformat.write(notebook, folder / "notebooks" / f"{name}.ipynb")


def printed(path):
    cells = nbformat.read(path, as_version=4).cells
    return "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))


# ---- scripts/run -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """One `scripts/run --quick` over a failing and a good notebook."""
    course = make_course(tmp_path_factory.mktemp("quick"))
    failing = "!printf '\\033[31mno such GPU\\033[0m\\n'; exit 3"
    add_notebook(course, "00_failing", (failing, []), ("print('never')", []))
    quick = {"seconds": 20, "quick": {"seconds": 7, "parameters": {"epochs": 1}}}
    add_notebook(
        course,
        "01_good",
        ("epochs = 5", ["parameters"]),
        ("print('epochs', epochs)\nprint(sys.executable)\n!which python", []),
        course=quick,
    )
    # Somebody's own kernel of the same name must not be taken for the environment's.
    foreign = course / "foreign" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    (foreign / "kernel.json").write_text('{"argv": ["false"], "display_name": "foreign", "language": "python"}')
    result = run("scripts/run", "--quick", cwd=course, JUPYTER_PATH=course / "foreign", MPLBACKEND="Agg")
    return course, result


def test_notebooks_run_in_order_and_a_failing_one_stops_no_other(quick_run):
    course, result = quick_run
    assert re.findall(r"^\[(\d)/2\] (\w+): (passed|FAILED)", result.stdout, re.M) == [
        ("1", "00_failing", "FAILED"), ("2", "01_good", "passed")], result.stdout + result.stderr
    assert "of about 7 s" in result.stdout


def test_a_failing_notebook_is_named_with_its_error(quick_run):
    course, result = quick_run
    assert result.returncode == 1
    end = result.stdout[result.stdout.index("FAILED 00_failing, cell [2]:"):]
    assert "no such GPU" in end and "returned non-zero exit status 3" in end
    assert "\033" not in result.stdout
    assert "1 of 2 notebooks passed" in end


def test_quick_parameters_and_this_python_reach_the_kernel(quick_run):
    course, _ = quick_run
    began, *out = printed(course / "build/notebooks/01_good.ipynb").split("\n", 1)
    assert began.startswith("Python ")
    out = out[0].split()
    assert out[:2] == ["epochs", "1"]
    assert [Path(path).parent for path in out[2:]] == [Path(sys.executable).parent] * 2


def test_papermill_itself_fails_where_a_command_fails(quick_run):
    """As the CI of a class would run it: no script of this repository in between."""
    course, _ = quick_run
    result = run("papermill", "notebooks/00_failing.ipynb", "out.ipynb", cwd=course)
    assert result.returncode != 0 and "returned non-zero exit status 3" in result.stderr


def test_an_unknown_name_lists_the_names_and_a_quick_run_is_never_committed(quick_run):
    course, _ = quick_run
    result = run("scripts/run", "0", cwd=course)
    assert (result.returncode, result.stdout) == (2, "") and result.stderr.endswith("there are: 00_failing, 01_good\n")
    result = run("scripts/run", "--quick", "--in-place", cwd=course)
    assert (result.returncode, result.stdout) == (2, "") and "not allowed with" in result.stderr


def test_in_place_refreshes_committed_outputs_and_nothing_else(tmp_path, monkeypatch):
    course = make_course(tmp_path)
    notebooks = course / "notebooks"
    (notebooks / "text/00_good.py").write_text(TWIN + "\n# %%\n!echo from the shell\n")
    (notebooks / "text/01_bad.py").write_text(TWIN + "\n# %%\n1 / 0\n")
    (notebooks / "01_bad.ipynb").write_text("<<<<<<< a merge that went wrong")
    assert run("scripts/run", "--build", "00", cwd=course).returncode == 0

    result = run("scripts/run", "--in-place", "--others", "9", cwd=course)

    assert result.returncode == 1 and "ZeroDivisionError" in result.stdout
    assert (notebooks / "01_bad.ipynb").read_text() == "<<<<<<< a merge that went wrong", "not replaced by a failure"
    good = nbformat.read(notebooks / "00_good.ipynb", as_version=4)
    assert good.metadata.pop("others") < 9
    assert {key: good.metadata[key] for key in good.metadata if key != "language_info"} == {
        "course": {"seconds": 5},
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    }
    assert good.metadata.language_info.version == "3", "another Python version changes no committed notebook"
    assert [cell.metadata for cell in good.cells] == [{}, {}, {"tags": ["parameters"]}, {}, {}]
    assert [cell.execution_count for cell in good.cells if cell.cell_type == "code"] == [1, 2, 3, 4]
    assert [[output.text for output in cell.outputs] for cell in good.cells[3:]] == [
        ["one\nepochs 3\n"],
        ["from the shell\n"],
    ]
    committed = (notebooks / "00_good.ipynb").read_bytes()
    assert str(course) not in committed.decode()
    assert sorted(path.name for path in notebooks.iterdir()) == ["00_good.ipynb", "01_bad.ipynb", "text"]

    # a notebook that is built again keeps the outputs that are still true: all but the changed cell's
    monkeypatch.chdir(course)
    twin = notebooks / "text/00_good.py"
    twins.commit(twins.build("00_good"), "00_good")
    assert (notebooks / "00_good.ipynb").read_bytes() == committed
    twin.write_text(twin.read_text().replace("from the shell", "from elsewhere"))
    twins.commit(twins.build("00_good"), "00_good")
    rebuilt = nbformat.read(notebooks / "00_good.ipynb", as_version=4)
    assert rebuilt.cells[-1].source == "!echo from elsewhere" and rebuilt.cells[-1].outputs == []
    assert rebuilt.cells[:-1] == good.cells[:-1]


def test_a_cell_that_does_not_end_is_stopped(tmp_path):
    course = make_course(tmp_path)
    add_notebook(course, "00_endless", ("import time\nwhile True: time.sleep(1)", []))
    result = run("scripts/run", "--timeout", "3", cwd=course)
    assert result.returncode == 1
    assert "took longer than 3 s" in result.stdout and "Traceback" not in result.stdout + result.stderr


def test_ctrl_c_names_what_finished_and_leaves_no_process(tmp_path):
    course = make_course(tmp_path)
    # Like torchrun: a command whose worker has a session of its own, and does not end when asked.
    (course / "runner.py").write_text(
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if sys.argv[1:]:\n"
        "    subprocess.Popen([sys.executable, __file__], start_new_session=True)\n"
        "with open('pids', 'a') as file: file.write(f'{os.getpid()}\\n')\n"
        "time.sleep(300)\n"
    )
    add_notebook(course, "00_done", ("1", []))
    add_notebook(course, "01_busy", ("!python runner.py worker", []))
    add_notebook(course, "02_never", ("1", []))
    pids = course / "pids"
    process = subprocess.Popen(["scripts/run"], cwd=course, env=environment(course), stdout=subprocess.PIPE, text=True,
                               start_new_session=True)
    try:
        runner.wait_for(lambda: pids.exists() and len(pids.read_text().split()) == 2, "the busy notebook's command", 60)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        started = [int(pid) for pid in pids.read_text().split()] if pids.exists() else []
        alive = [pid for pid in started if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
    assert process.returncode == 130
    assert "Stopped in 01_busy. Passed before: 00_done." in out and "02_never" not in out
    assert not alive


def test_the_notebook_of_the_template_runs_and_its_exercise_is_untried():
    """Whoever copies lessons/_template, as CONTRIBUTING.md says, begins with something sound."""
    notebook = jupytext.read(ROOT / "lessons/_template/notebook_text.py")
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3",
                            resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()
    (check,) = [cell for cell in notebook.cells if cell.source.startswith("check.mean(")]
    assert check.outputs[0].data["text/plain"] == "○ Not tried yet."
