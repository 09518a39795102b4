"""scripts/lab as a reader meets it: a real server, a real browser, a notebook run from top to bottom."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import jupytext
import nbformat
import pytest
from playwright.sync_api import expect

from course import rendezvous
from tests.runner import ROOT

pytestmark = pytest.mark.browser
NOTEBOOK, TWIN = "notebooks/00_start_here.ipynb", "notebooks/text/00_start_here.py"


def quicker(text):
    return text.replace("samples = 10_000", "samples = 640").replace("--epochs 4", "--epochs 2 --test-samples 100")


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A copy of the course: JupyterLab saves what it runs, and the committed notebooks must stay as they are."""
    folder = tmp_path_factory.mktemp("course")
    left_behind = shutil.ignore_patterns(".*", "data", "build", "tests", "results", "__pycache__")
    shutil.copytree(ROOT, folder, ignore=left_behind, dirs_exist_ok=True)
    (folder / "results/live").mkdir(parents=True)
    if (ROOT / "results/recorded").exists():
        shutil.copytree(ROOT / "results/recorded", folder / "results/recorded")
    (ROOT / "data").mkdir(exist_ok=True)
    (folder / "data").symlink_to(ROOT / "data")
    notebook = nbformat.read(folder / NOTEBOOK, as_version=4)
    for cell in code_cells(notebook):
        cell.source, cell.outputs, cell.execution_count = quicker(cell.source), [], None
    nbformat.write(notebook, folder / NOTEBOOK)
    (folder / TWIN).write_text(quicker((folder / TWIN).read_text(encoding="utf-8")), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def lab(course):
    """URL of a running `scripts/lab --no-browser`, as it prints it: with the token."""
    port = rendezvous.free_port()
    environment = os.environ | {
        "VIRTUAL_ENV": sys.prefix,  # scripts/setup then takes the environment of these tests, where it finds the copy
        "PYTHONPATH": str(course),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "JUPYTER_CONFIG_DIR": str(course / "no-config"),  # the settings of whoever runs the tests play no part
    }
    server = subprocess.Popen(
        ["scripts/lab", "--no-browser", "--port", str(port)],
        cwd=course,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines, url, known = [], [], threading.Event()

    def listen():  # to the end, for a full pipe would stop the server
        for line in server.stdout:
            lines.append(line)
            if not url and (address := re.search(r"http://127\.0\.0\.1:\d+/\S+", line)):
                url.append(address[0])
                known.set()
        known.set()  # it ended

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        known.wait(timeout=120)
        assert url, "".join(lines)
        deadline = time.monotonic() + 60
        while not answers(url[0]):  # the URL is printed a moment before the server listens
            assert time.monotonic() < deadline and server.poll() is None, "".join(lines)
            time.sleep(0.2)
        yield url[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.send_signal(signal.SIGTERM)  # shuts the kernels down too
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(timeout=20)
        listener.join(timeout=20)


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


@pytest.mark.timeout(600)
def test_the_first_notebook_runs_in_the_browser(course, lab, chromium):
    before = jupytext.read(course / TWIN)
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
    expect(page.locator(".jp-mod-dirty")).to_have_count(0)
    page.close()
    cells = code_cells(nbformat.read(course / NOTEBOOK, as_version=4))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert all(cell.execution_count for cell in cells) and any(cell.outputs for cell in cells)
    after = jupytext.read(course / TWIN)  # saving writes the text twin as well, and must lose nothing of it
    assert [(cell.cell_type, cell.source, cell.metadata.get("tags")) for cell in after.cells] == [
        (cell.cell_type, cell.source, cell.metadata.get("tags")) for cell in before.cells
    ]
    assert after.metadata.course == before.metadata.course
