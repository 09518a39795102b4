"""What every test needs: signals as in a fresh shell, the real data, and a browser."""

import logging
import os
import shutil
import signal
import sys
from importlib.metadata import version

import pytest

for number in (signal.SIGINT, signal.SIGHUP):  # ignored after `scripts/test &` and nohup, and inherited
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
if tuple(map(int, version("torch").split(".")[:2])) < (2, 14):  # its torchrun takes no free port by itself
    os.environ["PET_MASTER_PORT"] = str(29510 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """For --dist loadgroup: a file's tests share what they started; notebooks share nothing, and begin first."""
    for item in items:
        alone = item.path.name == "test_notebooks_run.py"
        item.add_marker(pytest.mark.xdist_group(item.name if alone else item.path.name))
    items.sort(key=lambda item: item.path.name != "test_notebooks_run.py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In continuous integration everything is installed: what skips for anything but want of a GPU has failed."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and "GPU" not in str(report.longrepr):
        report.outcome = "failed"
    return report


@pytest.fixture(autouse=True)
def as_in_a_fresh_process():
    """Where a test played rank 1 in this process, the logger has been told to say errors only; figures stay open."""
    logging.getLogger("course").setLevel(logging.NOTSET)
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="session")
def cifar10():
    """(training set, test set) of the real CIFAR-10; skips where no source answers."""
    from trainer import data

    try:
        return data.get_dataset("cifar10", "./data")
    except ConnectionError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def chromium():
    """A browser; only one at a time can be driven from a process, so it ends with its file."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not program:
        pytest.skip("no chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[
            "--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--no-first-run"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """open_page(url, own, **settings of the context): a page. Its errors and warnings, and its requests to any other
    address than those that begin with `own`, stand in page.complaints."""
    contexts = []

    def opened(url, own, **settings):
        contexts.append(chromium.new_context(**settings))
        page = contexts[-1].new_page()
        page.complaints = []
        page.on("console", lambda message: page.complaints.append(message.text)
                if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda request: page.complaints.append(request.url)
                if not request.url.startswith((own, "data:", "blob:", "about:")) else None)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
