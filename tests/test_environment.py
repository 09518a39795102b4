"""The lists of versions agree with each other and with what the code imports."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = [*PROJECT["dependencies"], *(line for name, lines in PROJECT["optional-dependencies"].items()
                                        for line in lines)]


def lines_of(name):
    return [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]


ROOMS = ("course", "doctor", "examples", "lessons", "scripts", "site", "teach", "tests", "trainer")
SOURCES = sorted([*ROOT.glob("*.py"), *(path for room in ROOMS
                                        for path in ROOT.glob(f"{room}/**/*.py"))])


def name_of(requirement):
    """The name alone, as package indexes compare it: `PyYAML>=6 # why` -> `pyyaml`."""
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", requirement)[0]).lower()


def imports_of(path):
    """Top-level names of the modules that a source file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


def test_the_lock_file_holds_all_that_is_required_in_versions_that_are_allowed():
    locked = {name_of(line): line.partition("==")[2] for line in lines_of("requirements-lock.txt")}
    for need in map(Requirement, REQUIRED):
        version = locked[name_of(need.name)]
        assert need.specifier.contains(version), f"{need.name} {version} is locked, {need.specifier} is allowed"


def test_pip_and_conda_users_get_the_same_list():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert pip == ["-r requirements.txt"]
    (line,) = lines_of("requirements.txt")
    extras = line.removeprefix("-e .[").removesuffix("]").split(",")
    assert set(extras) == set(PROJECT["optional-dependencies"]) - {"rivals", "watch"}


def test_every_import_is_required():
    importable, distributions = {*map(name_of, REQUIRED), "setuptools"}, packages_distributions()
    ours = {source.stem for source in SOURCES} | set(ROOMS)
    for path in SOURCES:
        for module in set(imports_of(path)) - ours - set(sys.stdlib_module_names):
            # not installed: then the distribution is taken to be called as its module
            candidates = {name_of(name) for name in distributions.get(module, [module])}
            assert candidates & importable, f"{path} imports {module}: no list of requirements has any of {candidates}"


def test_codespaces_sets_up_as_everybody_does():
    made = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())  # no comments: any reader of JSON will do
    name, tag = made["image"].split(":")
    assert name == "python" and tuple(map(int, tag.split("."))) >= (3, 11)
    program, option = made["postCreateCommand"].split()
    assert os.access(ROOT / program, os.X_OK) and f"{program} {option} " in (ROOT / program).read_text()
    assert [*made["portsAttributes"]] == [str(port) for port in made["forwardPorts"]]


def test_binder_takes_the_same_list_and_torch_for_the_cpu():
    options = dict(line.split() for line in lines_of(".binder/requirements.txt"))
    assert (ROOT / ".binder" / options["-r"]).resolve() == ROOT / "requirements.txt"
    assert f"index={options['--extra-index-url']}\n" in (ROOT / "scripts/setup").read_text()
    assert lines_of(".binder/runtime.txt") == [PROJECT["requires-python"].replace(">=", "python-")]
    assert os.access(ROOT / ".binder/postBuild", os.X_OK)


def test_ci_runs_what_everybody_runs_with_actions_that_nobody_can_change():
    found = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    commands = []
    for name, job in found["jobs"].items():
        assert job["timeout-minutes"] <= 90, f"{name}: every wait has a bound"
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), "a tag can be moved, a SHA cannot"
            else:
                commands.append(step["run"])
    assert {".ci/run", "scripts/test --fast", "scripts/run"} <= set(commands)
    assert all(os.access(ROOT / command.split()[0], os.X_OK) for command in commands if "\n" not in command)
    allowed = {need.name: need.specifier for need in map(Requirement, REQUIRED)}
    oldest, *others = [Requirement(each["torch"]) for each in found["jobs"]["linux"]["strategy"]["matrix"]["include"]]
    assert f">={str(oldest.specifier)[2:-2]}" in str(allowed["torch"]) and others, "the oldest torch, and the newest"

# ------------------------------------------------------------------------------- systems that are not Linux: pretended

WINDOWS = """
import runpy, sys
import torch, torchvision, pandas, psutil  # whole, as on a real Windows
for module in ("fcntl", "pwd", "resource"):
    sys.modules[module] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("program", ["main.py", *(
    pytest.param(program, marks=pytest.mark.weekly) for program in (
        "scripts/prepare_data.py", "lessons/l10_launchers/spawn_mnist.py",
        "scripts/measure/side_by_side.py", "scripts/cluster/slurm_lab.py", "scripts/cluster/lab_cluster.py"))])
def test_on_windows_the_last_line_says_where_to_go(program):
    done = subprocess.run([sys.executable, "-c", WINDOWS, program], cwd=ROOT, capture_output=True, text=True,
                          timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.endswith("Error: This needs Linux or macOS. On Windows: WSL, see site/pages/systems.md.\n")


@pytest.mark.parametrize("program", ["scripts/cluster/lab_cluster.py", "scripts/cluster/slurm_lab.py"])
def test_hosts_without_their_tools_are_one_line(program, tmp_path):
    done = subprocess.run([sys.executable, program, "true"], cwd=ROOT, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": str(tmp_path)})
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert "(Linux only)" in done.stderr or "not found" in done.stderr


def test_set_up_refuses_windows_in_one_line():
    done = subprocess.run([ROOT / "scripts/setup"], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "OSTYPE": "msys"})  # as Git's bash for Windows says
    assert done.returncode == 1 and "WSL" in done.stderr and len(done.stderr.splitlines()) == 1
