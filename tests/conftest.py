"""What every test needs: the repository root on the path, and the data."""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # `scripts/test &` in a shell: what the tests start inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def cifar10():
    """(training set, test set) of the real CIFAR-10; skips where no source answers."""
    import utils

    try:
        return utils.get_dataset("cifar10", "./data")
    except ConnectionError as error:
        pytest.skip(str(error))
