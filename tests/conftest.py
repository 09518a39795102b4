"""What every test needs: the repository root on the path, and the data."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


@pytest.fixture(scope="session")
def cifar10():
    """(training set, test set) of the real CIFAR-10; skips where no source answers."""
    import utils

    try:
        return utils.get_dataset("cifar10", "./data")
    except ConnectionError as error:
        pytest.skip(str(error))
