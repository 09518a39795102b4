"""What every test needs: signals as in a fresh shell, and the data."""

import faulthandler
import logging
import os
import re
import shutil
import signal
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

for number in (signal.SIGINT, signal.SIGHUP):  # ignored after `scripts/test &` and nohup, and inherited
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# A fresh shell's Python has a buffer: without it the words that gloo's C++ prints on all ranks at one moment are mixed.
os.environ.pop("PYTHONUNBUFFERED", None)
# torchrun takes a free port in 2.14, and in 2.10 always the same, unless it is told one: scripts/test runs four files
# at a time, each in a process of its own.
if tuple(map(int, version("torch").split(".")[:2])) < (2, 14):
    os.environ["PET_MASTER_PORT"] = str(29510 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))


def pytest_configure():
    """Let no run last longer than TEST_SECONDS, which scripts/test sets, whatever its processes are stuck in: this
    thread of C needs nothing of Python, as pytest-timeout's signal does. Each process says where it was, and ends."""
    if seconds := os.environ.get("TEST_SECONDS"):
        stderr = os.fdopen(os.dup(2), "w")  # pytest will put files in the place of the first
        faulthandler.dump_traceback_later(float(seconds), exit=True, file=stderr)


@pytest.fixture(autouse=True)
def as_in_a_fresh_process():
    """Where a test played rank 1 in this process, the logger has been told to say errors only; figures stay open."""
    logging.getLogger("course").setLevel(logging.NOTSET)
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="session")
def ranks_find_all_modules_imported():
    """For tests that let a check start ranks: runner.run() does it by itself."""
    from tests import runner

    runner.prepare_to_fork()


@pytest.fixture(scope="session")
def forked_python(tmp_path_factory, ranks_find_all_modules_imported):
    """A python and, beside it, a torchrun that find torch imported; as PYTHON_EXEC, torchrun's ranks do, too."""
    from course import forked_ranks
    from tests import forked_python

    with forked_python.command(tmp_path_factory.mktemp("python"), forked_ranks.FORKED) as program:
        yield str(program)


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


ONE_BY_ONE = {"test_notebooks_run.py"}  # its tests share nothing, and each takes its time
LONGEST = ["notebooks_run", "slurm", "exercises", "broken", "fault_tolerance", "main", "checkpoint", "site", "complete",
           "spawn_mnist", "capstone", "launchers", "lab_cluster", "collectives", "compare_changes", "doctor", "browser",
           "run_notebooks", "grade", "learner_copy", "teaching"]


def pytest_collection_modifyitems(items):
    """The longest begin first: else one of them would end the run alone. Then lessons/, most of which starts ranks."""
    place = {f"test_{name}.py": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (place.get(item.path.name, len(place)), item.path.parent.name == "tests"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """loadfile, which keeps a file's tests in one process, where they share what they started; but for ONE_BY_ONE."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return nodeid if Path(file).name in ONE_BY_ONE else file

    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem):
    """End the run where one of its processes has died in a test: xdist would wait for ever for the tests that the dead
    one had been given (loadfile, pytest-xdist 3.8). One that dies between tests: --max-worker-restart=0."""
    pytest.exit(f"a process of the tests has died in {crashitem}", returncode=3)


# What continuous integration may leave out: no machine of its has a GPU, and some tests depend on what torch or the
# system happens to be.
MAY_SKIP = "GPU|accelerator|bubblewrap makes no room here|not among the ways of this run|a page at a time|no mpirun"
skipped_in_ci = []


def pytest_runtest_logreport(report):
    if report.skipped and os.environ.get("CI") == "true":
        *_, reason = report.longrepr  # (file, line, reason)
        if not re.search(MAY_SKIP, reason):
            skipped_in_ci.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session):
    if skipped_in_ci and not hasattr(session.config, "workerinput"):  # xdist's workers report to the one that counts
        session.exitstatus = session.exitstatus or 1


def pytest_terminal_summary(terminalreporter):
    for line in skipped_in_ci:
        terminalreporter.write_line(f"FAILED: skipped, and not on the list of what CI may skip: {line}", red=True)
