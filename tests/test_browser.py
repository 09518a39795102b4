"""scripts/lab as a reader meets it: a real server, a real browser, a notebook run from top to bottom."""

import contextlib
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import nbformat
import pytest
from playwright.sync_api import expect

from course import rendezvous
from tests import runner

pytestmark = pytest.mark.browser
NAME = "00_start_here.ipynb"
QUICKER = {"images = 6144 ": "images = 768 ", "epochs = 6 ": "epochs = 2 "}


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """(folder, environment) of a clone: JupyterLab saves what it runs, and the committed notebooks must stay."""
    folder = tmp_path_factory.mktemp("course")
    environment = runner.clone(folder)
    text = (folder / "notebooks" / NAME).read_text(encoding="utf-8")
    for old, new in QUICKER.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "notebooks" / NAME).write_text(text, encoding="utf-8")
    # The settings of whoever runs the tests play no part.
    return folder, environment | {"JUPYTER_CONFIG_DIR": str(folder / "no-config")}


@pytest.fixture(scope="module")
def lab(course, tmp_path_factory):
    """URL of a running `scripts/lab --no-browser`, as it prints it: with the token."""
    (folder, environment), printed = course, tmp_path_factory.mktemp("lab") / "printed.txt"

    def address():
        assert server.poll() is None, printed.read_text()
        return re.search(r"http://127\.0\.0\.1:\d+/\S+", printed.read_text())

    with printed.open("w") as file:
        server = subprocess.Popen(["scripts/lab", "--no-browser", "--port", str(rendezvous.free_port())],
                                  cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        # The URL is printed a moment before the server listens.
        runner.wait_for(lambda: address() and answers(address()[0]), "JupyterLab")
        yield address()[0]
    finally:
        runner.end(server, signal.SIGTERM)


def status_of(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.geturl()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.url


def answers(url):
    with contextlib.suppress(OSError):
        return status_of(url)[0] == 200


def test_only_this_machine_and_only_with_the_token(lab):
    origin, _, token = re.match(r"(http://[^/]+)/(\S*)\?token=(\w+)", lab).groups()
    assert status_of(f"{origin}/api/contents?token={token}")[0] == 200
    assert status_of(f"{origin}/api/contents")[0] == 403
    assert "/login" in status_of(f"{origin}/lab")[1]
    with socket.socket() as other, pytest.raises(OSError):
        other.settimeout(20)
        other.connect(("127.0.0.2", int(origin.rpartition(":")[2])))


def tracked(folder):
    return {path: path.read_bytes() for path in folder.glob("notebooks/**/*") if path.is_file()}


@pytest.mark.weekly
@pytest.mark.timeout(600)
def test_the_first_notebook_runs_in_the_browser_as_the_learner_s_own(course, lab, chromium):
    folder, _ = course
    own, before = folder / "my-notebooks" / NAME, tracked(folder)
    assert not any(cell.outputs for cell in code_cells(nbformat.read(own, as_version=4)))
    page = chromium.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(60_000)
    page.goto(lab)
    panel = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    panel.locator(".jp-CodeCell").first.wait_for()
    page.get_by_text("| Idle").first.wait_for()
    expect(page.locator(".jp-Notification-Toast, .Toastify__toast")).to_have_count(0)  # nothing asks for attention
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    panel.locator(".jp-OutputArea-output").first.wait_for()
    deadline = time.monotonic() + 400
    while page.get_by_text("| Busy").count() or panel.locator(".jp-InputPrompt", has_text="[*]").count():
        assert time.monotonic() < deadline, "the notebook did not end"
        page.wait_for_timeout(500)
    page.keyboard.press("Control+s")  # cells out of sight may not be drawn: the rest is read from what JupyterLab saves
    expect(page.locator(".lm-TabBar-tab.lm-mod-current.jp-mod-dirty")).to_have_count(0, timeout=60_000)
    page.close()
    cells = code_cells(nbformat.read(own, as_version=4))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert all(cell.execution_count for cell in cells) and any(cell.outputs for cell in cells)
    assert tracked(folder) == before and not (folder / "my-notebooks" / "text").exists()
