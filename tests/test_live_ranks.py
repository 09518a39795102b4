"""Ranks that wait for cells: they run in a notebook that papermill executes, and end with its kernel."""

import os
import subprocess
import sys

import nbformat
import papermill
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests import runner

START = "from course import lesson\nlesson.live_ranks({}, timeout=2)"
SUM = "%%px\ntotal = torch.full((2,), float(rank))\ndist.all_reduce(total)\nprint(total.tolist())"


def executed(tmp_path, monkeypatch, *cells):
    """The notebook of these cells, as papermill leaves it; and the error with which it ended, if it did."""
    monkeypatch.setenv("PYTHONPATH", str(runner.ROOT))
    before, after = tmp_path / "before.ipynb", tmp_path / "after.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(cell) for cell in cells]), before)
    error = None
    try:
        papermill.execute_notebook(before, after, kernel_name="python3", cwd=tmp_path, progress_bar=False,
                                   execution_timeout=120)
    except papermill.PapermillExecutionError as raised:
        error = raised
    return [cell for cell in nbformat.read(after, 4).cells if "papermill-error-cell-tag" not in cell.metadata.get(
        "tags", [])], error


def text(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def test_a_cell_runs_on_all_ranks_and_on_the_dial_and_a_hang_fails_it(tmp_path, monkeypatch):
    again = "try:\n    get_ipython().run_cell_magic('px', '', 'if rank: dist.all_reduce(total)')\n" \
            "except Exception as error:\n    print(error)\nlesson.live_ranks(2, timeout=2)"
    turned = "%%px\nfrom course import dial\ndial.pace('80mbit')\ndist.all_reduce(torch.ones(250_000))\n" \
             "print(round(max(dial.counted()), -5))"
    cells, error = executed(tmp_path, monkeypatch, START.format(2), SUM, turned, again, SUM,
                            "%%px\nif rank: dist.all_reduce(total)", "print('not reached')")
    first, after = cells[1], cells[4]
    for cell in (first, after):
        assert text(cell).split("\n") == ["[stdout:0] ", "[1.0, 1.0]", "[stdout:1] ", "[1.0, 1.0]", ""]
    assert text(cells[2]).count("1000000") == 2
    assert "[1:" in text(cells[3]), "the rank that waited"
    assert error is not None and "Timed out waiting" in str(error)
    assert cells[-1].execution_count is None, "no later cell runs"


@pytest.mark.weekly
def test_a_rank_that_never_answers_is_started_again(tmp_path, monkeypatch):
    stuck = "import ipyparallel\nfrom course import live_ranks\n" \
            "live_ranks._running[0][1][1].execute('while True: pass', block=False)\nlesson.live_ranks(2, timeout=2)"
    cells, error = executed(tmp_path, monkeypatch, START.format(2), stuck, SUM)
    assert error is None and text(cells[2]).count("[1.0, 1.0]") == 2


@pytest.mark.weekly
def test_they_end_with_a_kernel_that_is_killed():
    cell = f"{START.format(2)}\nimport time\ntime.sleep(100)"
    program = f"from IPython.core.interactiveshell import InteractiveShell as It\nIt.instance().run_cell({cell!r})"
    kernel = subprocess.Popen([sys.executable, "-c", program], cwd=runner.ROOT, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": str(runner.ROOT)})
    try:
        assert "2 ranks" in kernel.stdout.readline()
        family = psutil.Process(kernel.pid).children(recursive=True)
        assert len(family) > 4
    finally:
        kernel.kill()
        kernel.communicate()
    assert psutil.wait_procs(family, timeout=60)[1] == []
