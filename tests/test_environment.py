"""The lists of versions agree with each other and with what the code imports."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

import yaml
from packaging.requirements import Requirement

from course.lesson import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = [*PROJECT["dependencies"], *(line for name, lines in PROJECT["optional-dependencies"].items()
                                        for line in lines)]


def lines_of(name):
    return [line for line in (ROOT / name).read_text().splitlines() if line and not line.startswith("#")]


ROOMS = ("course", "doctor", "examples", "gallery", "lessons", "scripts", "site", "teach", "tests", "trainer")
SOURCES = [*ROOT.glob("*.py"), *(path for room in ROOMS for path in ROOT.glob(f"{room}/**/*.py"))]


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
    ours = {name for source in SOURCES for name in (source.stem, source.parent.name)} | set(ROOMS)
    for path in SOURCES:
        for module in set(imports_of(path)) - ours - set(sys.stdlib_module_names):
            # not installed: then the distribution is taken to be called as its module
            candidates = {name_of(name) for name in distributions.get(module, [module])}
            assert candidates & importable, f"{path} imports {module}: no list of requirements has any of {candidates}"
