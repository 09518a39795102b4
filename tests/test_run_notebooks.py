"""scripts/setup and scripts/run, on tiny courses of their own: real kernels, no network, no torch."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from scripts import run_notebooks

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ["setup", "run", "test", "lab", "record"]
FIRST_CELL = """\
import sys
sys.path[:0] = [".", ".."]
from course import lesson; lesson.begin()
"""
# of course/:
NEEDED = ["__init__", "alt_text", "gallery_table", "lesson", "notebook_runs", "pages", "png", "processes",
          "rank_program", "twins"]
TWIN = (
    "# ---\n# jupyter:\n#   course: {seconds: 5}\n# ---\n\n# %% [markdown]\n# # A title\n\n# %%\n"
    + FIRST_CELL
    + '\n# %% tags=["parameters"]\nepochs = 3\n\n# %%\nprint("one", flush=True)\nprint("epochs", epochs)\n'
)


def environment(**changes):
    """This process' environment, with the Python that runs the tests as its active environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"VIRTUAL_ENV": sys.prefix, "PATH": path} | changes


def run(*command, cwd, **changes):
    words, env = [str(word) for word in command], environment(**changes)
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


def make_course(folder):
    """The least that scripts/run needs: nothing in requirements.txt is missing, and the data is there."""
    for place in ("scripts", "notebooks/text", "data", "course"):
        (folder / place).mkdir(parents=True)
    names = ["scripts/setup", "scripts/run", "scripts/run_notebooks.py", "options.py", "CITATION.cff"]
    names += [f"course/{name}.py" for name in NEEDED]
    for name in names:
        shutil.copy2(ROOT / name, folder / name)
    for empty in ("data/cifar10.pt", "data/mnist.pt"):
        (folder / empty).touch()
    (folder / "requirements.txt").write_text("nbformat # there\n")
    return folder


def add_site(folder):
    """What scripts/run makes pages with, besides notebooks."""
    shutil.copytree(ROOT / "site", folder / "site", ignore=shutil.ignore_patterns("pages"))
    for name in ("CITATION.cff", "data.py"):
        shutil.copy2(ROOT / name, folder / name)
    (folder / "README.md").write_text("# A course\n\nIt is short.\n\n## Start\n")
    (folder / "TROUBLESHOOTING.md").write_text("# Troubleshooting\n\n[1](#1-it-hangs)\n\n## 1. It hangs\n\nWait.\n")


def add_notebook(folder, name, /, *cells, title="A notebook", **metadata):
    tagged = [new_code_cell(source, metadata=dict(tags=tags)) for source, tags in cells]
    notebook = new_notebook(cells=[new_markdown_cell(f"# {title}"), new_code_cell(FIRST_CELL), *tagged])
    notebook.metadata.update(metadata, kernelspec={"name": "python3", "display_name": "Python 3", "language": "python"})
    nbformat.write(notebook, folder / "notebooks" / f"{name}.ipynb")


def printed(path):
    cells = nbformat.read(path, as_version=4).cells
    return "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))


# ---- scripts/run -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """One `scripts/run --quick` over a good, a failing and another good notebook."""
    course = make_course(tmp_path_factory.mktemp("quick"))
    add_site(course)
    quick = {"seconds": 20, "quick": {"seconds": 7, "parameters": {"epochs": 1}}}
    add_notebook(
        course,
        "00_first",
        ("epochs = 5", ["parameters"]),
        ("print('epochs', epochs)\nprint(sys.executable)\n!which python", []),
        title="First & best",
        course=quick,
    )
    failing = "!printf '\\033[31mno such GPU\\033[0m\\n'; exit 3"
    add_notebook(course, "01_failing", (failing, []), ("print('never')", []))
    add_notebook(course, "02_last", ("import matplotlib.pyplot as plt\nplt.plot([1, 2]);", []))
    # Somebody's own kernel of the same name must not be taken for the environment's.
    foreign = course / "foreign" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    (foreign / "kernel.json").write_text('{"argv": ["false"], "display_name": "foreign", "language": "python"}')
    result = run("scripts/run", "--quick", cwd=course, JUPYTER_PATH=course / "foreign", MPLBACKEND="Agg")
    return course, result


def test_notebooks_run_in_order_and_a_failing_one_stops_no_other(quick_run):
    course, result = quick_run
    assert re.findall(r"^\[(\d)/3\] (\w+): (passed|FAILED)", result.stdout, re.M) == [
        ("1", "00_first", "passed"),
        ("2", "01_failing", "FAILED"),
        ("3", "02_last", "passed"),
    ], result.stdout + result.stderr
    assert "of about 7 s" in result.stdout


@pytest.mark.promise("loud commands")
def test_a_failing_notebook_is_named_with_its_error(quick_run):
    course, result = quick_run
    assert result.returncode == 1
    end = result.stdout[result.stdout.index("FAILED 01_failing, cell [2]:") :]
    assert "no such GPU" in end and "returned non-zero exit status 3" in end
    assert "\033" not in result.stdout
    assert "2 of 3 notebooks passed" in end and "build/site/index.html" in end


def test_quick_parameters_and_this_python_reach_the_kernel(quick_run):
    course, _ = quick_run
    began, *out = printed(course / "build/notebooks/00_first.ipynb").split("\n", 1)
    assert began.startswith("Python ")
    out = out[0].split()
    assert out[:2] == ["epochs", "1"]
    assert [Path(path).parent for path in out[2:]] == [Path(sys.executable).parent] * 2


def test_pages_are_made_of_what_was_executed(quick_run):
    course, _ = quick_run
    pages = {path.stem: path.read_text() for path in (course / "build/site/notebooks").glob("*.html")}
    assert sorted(pages) == ["00_first", "01_failing", "02_last"]
    assert "returned non-zero exit status 3" in pages["01_failing"] and "<img" in pages["02_last"]
    index = (course / "build/site/index.html").read_text()
    card = r'<strong><a[^>]*href="notebooks/(\w+)\.html"><span[^>]*>([^<]*)<.*?(passed|failed) here'
    cards = re.findall(card, index, re.S)
    assert cards == [("00_first", "First &amp; best", "passed"), ("01_failing", "A notebook", "failed"),
                     ("02_last", "A notebook", "passed")]


@pytest.mark.promise("loud commands")
def test_papermill_itself_fails_where_a_command_fails(quick_run):
    """As the CI of a class would run it: no script of this repository in between."""
    course, _ = quick_run
    result = run("papermill", "notebooks/01_failing.ipynb", "out.ipynb", cwd=course)
    assert result.returncode != 0 and "returned non-zero exit status 3" in result.stderr


@pytest.mark.parametrize("arguments", [["nope"], ["0"], ["--timeout", "0"], ["--quick", "--in-place"], ["--bad"]])
def test_bad_arguments_end_with_status_2(quick_run, arguments):
    course, _ = quick_run
    result = run("scripts/run", *arguments, cwd=course)
    assert result.returncode == 2 and not result.stdout
    assert "Traceback" not in result.stderr


def test_an_unknown_name_lists_the_names(quick_run):
    course, _ = quick_run
    result = run("scripts/run", "nope", cwd=course)
    assert result.stderr == "scripts/run: no notebook 'nope'; there are: 00_first, 01_failing, 02_last\n"


@pytest.mark.parametrize("name", ["00", "00_first", "notebooks/00_first.ipynb", "/else/notebooks/text/00_first.py"])
def test_a_notebook_has_several_names(name):
    choose = run_notebooks.choose
    assert choose([name], ["00_first", "01_second"]) == ["00_first"]
    assert choose(["01", name, name], ["00_first", "01_second"]) == ["00_first", "01_second"]


def test_in_place_refreshes_committed_outputs_and_nothing_else(tmp_path):
    course = make_course(tmp_path)
    notebooks = course / "notebooks"
    (notebooks / "text/00_good.py").write_text(TWIN + "\n# %%\n!echo from the shell\n")
    (notebooks / "text/01_bad.py").write_text(TWIN + "\n# %%\n1 / 0\n")
    (notebooks / "01_bad.ipynb").write_text("<<<<<<< a merge that went wrong")
    assert run("scripts/run", "--build", "00", cwd=course).returncode == 0

    result = run("scripts/run", "--in-place", cwd=course)

    assert result.returncode == 1 and "ZeroDivisionError" in result.stdout
    assert (notebooks / "01_bad.ipynb").read_text() == "<<<<<<< a merge that went wrong", "not replaced by a failure"
    good = nbformat.read(notebooks / "00_good.ipynb", as_version=4)
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

    # --build keeps what is still true: the changed cell loses its output, the others keep theirs
    twin = notebooks / "text/00_good.py"
    assert run("scripts/run", "--build", "00_good", cwd=course).returncode == 0
    assert (notebooks / "00_good.ipynb").read_bytes() == committed
    twin.write_text(twin.read_text().replace("from the shell", "from elsewhere"))
    assert run("scripts/run", "--build", "00_good", cwd=course).returncode == 0
    rebuilt = nbformat.read(notebooks / "00_good.ipynb", as_version=4)
    assert rebuilt.cells[-1].source == "!echo from elsewhere" and rebuilt.cells[-1].outputs == []
    assert rebuilt.cells[:-1] == good.cells[:-1]


@pytest.mark.promise("bounded waits")
def test_a_cell_that_does_not_end_is_stopped(tmp_path):
    course = make_course(tmp_path)
    add_notebook(course, "00_endless", ("import time\nwhile True: time.sleep(1)", []))
    result = run("scripts/run", "--timeout", "3", cwd=course)
    assert result.returncode == 1
    assert "took longer than 3 s" in result.stdout and "Traceback" not in result.stdout + result.stderr


def test_ctrl_c_names_what_finished_and_leaves_no_process(tmp_path):
    course = make_course(tmp_path)
    # Like torchrun: a command whose worker has a session of its own, and does not end when asked.
    (course / "launch.py").write_text(
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if sys.argv[1:]:\n"
        "    subprocess.Popen([sys.executable, __file__], start_new_session=True)\n"
        "with open('pids', 'a') as file: file.write(f'{os.getpid()}\\n')\n"
        "time.sleep(300)\n"
    )
    add_notebook(course, "00_done", ("1", []))
    add_notebook(course, "01_busy", ("!python launch.py worker", []))
    add_notebook(course, "02_never", ("1", []))
    pids = course / "pids"
    process = subprocess.Popen(
        ["scripts/run"],
        cwd=course,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    )
    try:
        deadline = time.monotonic() + 60
        while not pids.exists() or len(pids.read_text().split()) < 2:
            assert time.monotonic() < deadline and process.poll() is None, "the busy notebook did not start its command"
            time.sleep(0.1)
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


# ---- scripts/setup ---------------------------------------------------------------------------------

# Stands for python3: real for everything but venv and pip, which it notes in `calls`, and plays as told.
PYTHON_STUB = f"""#!/usr/bin/env bash
case "$1 $2 $3" in
  "-m venv "*) mkdir -p .venv/bin .venv/lib/python3/site-packages; cp "$0" .venv/bin/python; echo venv >> calls ;;
  "-m pip install")
    if [[ "$*" == *--index-url* ]]; then echo "$*" > index; exit "${{INDEX_STATUS:-0}}"; fi
    echo pip >> calls; echo "Collecting all"; sleep "${{PIP_SECONDS:-0}}"; exit "${{PIP_STATUS:-0}}" ;;
  "-m pip "*) ;;
  "scripts/prepare_data.py "*) echo data >> calls; exit "${{DATA_STATUS:-0}}" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
TOOLS = ["awk", "bash", "cat", "cksum", "cp", "df", "dirname", "env", "flock", "grep"]
TOOLS += ["mkdir", "rm", "sed", "sleep", "tail", "tee"]
OLD_PYTHON_STUB = '#!/usr/bin/env bash\nif [ "$1" = --version ]; then echo Python 3.9.2; else exit 1; fi\n'


@pytest.fixture
def clone(tmp_path):
    """A fresh clone, and a `bin` with the few programs that scripts/setup may use and a python3 that is played."""
    for place in ("scripts", "bin"):
        (tmp_path / place).mkdir()
    shutil.copy2(ROOT / "scripts/setup", tmp_path / "scripts")
    (tmp_path / "requirements.txt").write_text("one # a package\n")
    for tool in TOOLS:
        if found := shutil.which(tool):  # flock is not everywhere
            (tmp_path / "bin" / tool).symlink_to(found)
    play(tmp_path, "python3", PYTHON_STUB)
    return tmp_path


def play(clone, program, text):
    (clone / "bin" / program).unlink(missing_ok=True)
    (clone / "bin" / program).write_text(text)
    (clone / "bin" / program).chmod(0o755)


def start_setup(clone, *arguments, cwd=None, **changes):
    env = {"PATH": str(clone / "bin"), "HOME": str(clone)} | changes
    return subprocess.Popen(
        [str(clone / "scripts/setup"), *arguments],
        cwd=cwd or clone,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def set_up(clone, *arguments, **changes):
    process = start_setup(clone, *arguments, **changes)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def calls(clone):
    return (clone / "calls").read_text().split()


def test_setup_does_nothing_twice(clone):
    assert set_up(clone)[0] == 0
    assert calls(clone) == ["venv", "pip", "data"]
    (clone / "data").mkdir()
    for name in ("cifar10.pt", "mnist.pt"):
        (clone / "data" / name).touch()
    elsewhere = clone / "bin"
    assert set_up(clone, "--print-python", cwd=elsewhere) == (0, f"{clone.resolve()}/.venv/bin/python\n", "")
    assert calls(clone) == ["venv", "pip", "data"]


def test_setup_installs_what_requirements_gained(clone):
    set_up(clone)
    (clone / "requirements.txt").write_text("one # a package\ntwo # another\n")
    assert set_up(clone)[0] == 0
    assert calls(clone).count("pip") == 2 and calls(clone).count("venv") == 1


@pytest.mark.parametrize("status", ["0", "1"])
def test_setup_for_the_cpu_asks_the_index_of_such_wheels_and_says_where_it_does_not_answer(status, clone):
    shutil.copy2(ROOT / "requirements.txt", clone)
    code, _, said = set_up(clone, "--cpu", INDEX_STATUS=status)
    assert code == 0 and calls(clone) == ["venv", "pip", "data"]
    torch, torchvision = (clone / "index").read_text().split()[-2:]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("torch")] == [torch, torchvision]
    assert ("does not answer" in said) == (status == "1") and "stay as they are" not in said
    code, _, said = set_up(clone, "--cpu")
    assert code == 0 and calls(clone).count("pip") == 1 and "were there before, and stay as they are" in said


def test_setup_repairs_an_interrupted_one(clone):
    process = start_setup(clone, PIP_SECONDS="60")
    while "pip" not in ((clone / "calls").read_text() if (clone / "calls").exists() else ""):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    assert set_up(clone)[0] == 0
    assert calls(clone) == ["venv", "pip", "venv", "pip", "data"]


def test_setup_makes_a_new_venv_where_the_clone_was_moved(clone):
    """The programs in .venv/bin begin with the path of its Python."""
    set_up(clone)
    moved = clone.rename(clone.with_name("moved"))
    assert set_up(moved)[0] == 0
    assert calls(moved).count("venv") == 2


@pytest.mark.skipif(not shutil.which("flock"), reason="needs flock")
def test_of_two_setups_the_second_waits(clone):
    first, second = (start_setup(clone, PIP_SECONDS="1") for _ in range(2))
    told = [process.communicate(timeout=60)[1] for process in (first, second)]
    assert first.returncode == second.returncode == 0
    assert sum("waiting" in text for text in told) == 1
    assert calls(clone).count("pip") == 1


def test_setup_says_why_pip_failed(clone):
    status, out, err = set_up(clone, PIP_STATUS="1")
    assert status == 1 and out == ""
    assert "Collecting all" in err and "build/setup.log" in err
    assert set_up(clone)[0] == 0, "the next set-up goes on"
    assert calls(clone).count("venv") == 1


def test_setup_goes_on_without_the_real_data(clone):
    status, out, err = set_up(clone, DATA_STATUS="1")
    assert status == 0 and "synthetic" in err and "ready" in out
    assert set_up(clone, DATA_STATUS="2")[0] == 2


def test_setup_names_what_is_missing(clone):
    play(clone, "df", "#!/usr/bin/env bash\necho head\necho dev 9 9 3145728 9% /\n")
    status, _, err = set_up(clone)
    assert status == 1 and "about 7 GB" in err and "3 GB" in err
    play(clone, "python3", PYTHON_STUB.replace('case "$1', '[[ "$2" != *ensurepip* ]] || exit 1\ncase "$1'))
    status, _, err = set_up(clone)
    assert status == 1 and "apt install python3-venv" in err
    play(clone, "python3", OLD_PYTHON_STUB)
    status, _, err = set_up(clone)
    assert status == 1 and "Python 3.11 or newer" in err and "3.9.2" in err
    assert not (clone / "calls").exists() and not (clone / ".venv").exists()


def test_setup_finds_a_newer_python_beside_an_old_one(clone):
    play(clone, "python3", OLD_PYTHON_STUB)
    play(clone, "python3.12", PYTHON_STUB)
    assert set_up(clone)[0] == 0
    assert calls(clone) == ["venv", "pip", "data"]


def test_setup_uses_an_active_environment_that_has_everything(clone):
    (clone / "bin/python").symlink_to(sys.executable)
    active = {"VIRTUAL_ENV": sys.prefix, "PATH": f"{Path(sys.executable).parent}:{clone / 'bin'}"}
    (clone / "scripts/prepare_data.py").touch()
    (clone / "requirements.txt").write_text('nbformat>=5  # here\nnever; python_version < "3"  # not for us\n')
    status, out, err = set_up(clone, "--print-python", **active)
    assert (status, Path(out.strip()).parent) == (0, Path(sys.executable).parent), err
    assert not (clone / ".venv").exists()
    (clone / "requirements.txt").write_text("nbformat>=99  # not here\n")
    play(clone, "python", f'#!/usr/bin/env bash\nexec {sys.executable} "$@"\n')
    status, out, err = set_up(clone, "--print-python", VIRTUAL_ENV=sys.prefix)
    assert status == 0 and "lacks nbformat>=99: using .venv" in err
    assert out == f"{clone.resolve()}/.venv/bin/python\n"


def test_setup_makes_a_real_venv(tmp_path):
    """No stub here. pip is in every new environment, so that nothing has to be fetched."""
    (tmp_path / "scripts").mkdir()
    shutil.copy2(ROOT / "scripts/setup", tmp_path / "scripts")
    (tmp_path / "scripts/prepare_data.py").write_text("import sys; sys.exit(0)\n")
    (tmp_path / "requirements.txt").write_text("pip # there\n")
    result = run("scripts/setup", "--print-python", cwd=tmp_path, VIRTUAL_ENV="", CONDA_PREFIX="")
    assert result.returncode == 0, result.stderr
    prefix = run(result.stdout.strip(), "-c", "import sys, pip; print(sys.prefix)", cwd=tmp_path).stdout.strip()
    assert Path(prefix).resolve() == (tmp_path / ".venv").resolve()


# ---- all scripts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [*(f"scripts/{name}" for name in SCRIPTS), ".ci/run"])
def test_scripts_have_help(script, tmp_path):
    result = run(ROOT / script, "--help", cwd=tmp_path)
    assert result.returncode == 0 and len(result.stdout.splitlines()) >= 1 and not result.stderr
    assert "#" not in result.stdout and "set -e" not in result.stdout
    assert os.access(ROOT / script, os.X_OK)


def test_help_of_run_names_every_option(tmp_path):
    told = run(ROOT / "scripts/run", "--help", cwd=tmp_path).stdout
    command = [sys.executable, ROOT / "scripts/run_notebooks.py", "--help"]
    options = run(*command, cwd=tmp_path, PYTHONPATH=str(ROOT)).stdout
    assert set(re.findall(r"--[a-z-]+", options)) - {"--help"} <= set(re.findall(r"--[a-z-]+", told))
