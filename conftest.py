"""What every test needs: signals as in a fresh shell, and the real data."""

import logging
import os
import signal
import sys
from importlib.metadata import version

import pytest

for number in (signal.SIGINT, signal.SIGHUP):  # ignored after `scripts/test &` and nohup, and inherited
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
if tuple(map(int, version("torch").split(".")[:2])) < (2, 14):  # its torchrun takes no free port by itself
    os.environ["PET_MASTER_PORT"] = str(29510 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]))
LONG = [f"test_{name}.py" for name in ("notebooks_run", "main", "doctor", "grade", "exercises", "site", "checkpoint",
                                       "fault_tolerance", "slurm", "run_notebooks", "examples", "one_process")]


def pytest_collection_modifyitems(items):
    """What takes longest begins first, so that no worker is left with it at the end."""
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file's tests share what they started, so one worker runs them; notebooks share nothing. `--dist loadgroup` will
    not do: pytest-xdist 3.8 forms no groups under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return nodeid if file.endswith("test_notebooks_run.py") else file

    return ByFile(config, log)


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
