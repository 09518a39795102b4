"""Every notebook, executed as a class or a CI would: papermill's command line, quick tier.

Each day the first notebook runs, and of the short ones the one that changed last; each week all run. The kernel begins
in the root for every second notebook and in notebooks/ for the rest. (The cell that finds the root is the same
everywhere, as test_notebooks.py sees to.)
"""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests import runner

SHORT = 30  # seconds on a quiet machine; beside two other workers the longest would take four minutes
NOTEBOOKS = sorted((runner.ROOT / "notebooks").glob("*.ipynb"))


def quick(path):
    return nbformat.read(path, as_version=4).metadata.course.quick


def daily():
    """Names of the first notebook and, of those with a short quick tier, of the one that a commit changed last."""
    log = ["git", "log", "--max-count=100", "--format=", "--name-only", "--", "notebooks/*.ipynb"]
    changed = subprocess.run(log, cwd=runner.ROOT, capture_output=True, text=True, timeout=60).stdout.split()
    short = [f"notebooks/{path.name}" for path in NOTEBOOKS[1:] if quick(path).seconds <= SHORT]
    last = next(name for name in [*changed, *short] if name in short)
    return {NOTEBOOKS[0].stem, Path(last).stem}


CHOSEN = daily()
RUNS = [pytest.param(path, (".", "notebooks")[number % 2], marks=() if path.stem in CHOSEN else pytest.mark.weekly)
        for number, path in enumerate(NOTEBOOKS)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("path", "folder"), RUNS, ids=lambda value: getattr(value, "stem", value))
def test_quick_tier_runs_without_error(path, folder, tmp_path):
    parameters = [word for name, value in quick(path).parameters.items() for word in ("-p", name, str(value))]
    executed = tmp_path / path.name
    done = subprocess.run([Path(sys.executable).with_name("papermill"), path, executed, "--cwd", runner.ROOT / folder,
                           "--execution-timeout", "300", *parameters], cwd=runner.ROOT,
                          env=runner.environment(IPYTHONDIR=str(tmp_path)),
                          capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    cells = nbformat.read(executed, as_version=4).cells
    assert all(cell.execution_count for cell in cells if cell.cell_type == "code" and cell.source.strip())
