"""lessons/_template is a lesson that works, as CONTRIBUTING.md says: whoever copies it begins with something sound."""

import jupytext
import nbclient

from tests import runner

TEMPLATE = runner.ROOT / "lessons/_template"


def test_its_notebook_runs_and_its_exercise_is_untried():
    notebook = jupytext.read(TEMPLATE / "notebook_text.py")
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3",
                            resources={"metadata": {"path": str(runner.ROOT / "notebooks")}}).execute()
    (check,) = [cell for cell in notebook.cells if cell.source.startswith("check.mean(")]
    assert check.outputs[0].data["text/plain"] == "○ Not tried yet."
