"""A checkpoint file that is whole at every moment.

torch.save writes it, and torch.load(PATH, weights_only=True) reads it: loading runs no code.
"""

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import torch

from trainer import files

log = logging.getLogger("course")


class Unusable(files.Refused):
    """A checkpoint that this run cannot resume from. One line says why."""


class Checkpoint:
    """The file, and the one before it, PATH.previous. Every rank may read them; one rank owns them and writes."""

    def __init__(self, path: str | Path):
        self.path, self.previous = Path(path), Path(f"{path}.previous")

    def own(self) -> None:
        """Lock the file until this process ends, however it ends. BlockingIOError where another run has it."""
        self.lock = open(f"{self.path}.lock", "a")  # noqa: SIM115
        files.lock(self.lock)
        for left_over in self.path.parent.glob(f"{self.path.name}.*.part"):  # of a run that was killed as it wrote
            left_over.unlink()

    def write(self, state: dict[str, Any]) -> None:
        """Replace the file by `state`. At every moment PATH or PATH.previous is whole: the new file is flushed to the
        disk before it takes the name. Unwritable, and no change, where it cannot be written."""
        with files.writing(self.path):
            with files.whole(self.path) as part:
                write_out(state, part)
                if self.path.exists():
                    os.replace(self.path, self.previous)
            folder = os.open(self.path.parent, os.O_RDONLY)
            with contextlib.suppress(OSError):  # some file systems have no fsync for folders
                os.fsync(folder)  # the names, too, must reach the disk
            os.close(folder)

    def read(self) -> tuple[dict[str, Any] | None, str]:
        """(the newest whole state, or None where there is no file; what was wrong with a newer one, or ""). Unusable
        where there are only damaged ones."""
        damaged: list[str] = []
        for path in (self.path, self.previous):
            try:
                return load(path), "; ".join(damaged)
            except FileNotFoundError:
                continue
            except Unusable as error:
                damaged.append(f"{path}: {error}")
            except OSError as error:  # not allowed to read it, say: that does not make it a damaged one
                raise Unusable(f"{path}: {error.strerror or error}") from None
        if damaged:
            raise Unusable(f"{'; '.join(damaged)}: move it away, or --resume never")
        return None, ""

    def put_aside(self) -> None:
        """Rename a damaged PATH: else the next write would put it in the place of the good PATH.previous."""
        if self.path.exists():
            with files.writing(self.path):
                os.replace(self.path, f"{self.path}.damaged")


def write_out(state: Any, path: Path) -> None:
    """Let a file hold `state`, on the disk and not only in memory. OSError where it cannot be written."""
    try:
        with open(path, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    except RuntimeError as error:  # torch's own, as it closes a file that it could not write
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def load(path: Path) -> dict[str, Any]:
    """The state in a file, its tensors mapped from the disk. Unusable where it is damaged or no checkpoint; OSError
    where it cannot be read."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError:
        raise
    except Exception as error:  # a damaged or foreign file can fail in any way
        raise Unusable(f"damaged, or no checkpoint ({f'{type(error).__name__}: {error}'.splitlines()[0]})") from None
    if not isinstance(state, dict):
        raise Unusable("no checkpoint")
    return state


def save_model(raw_model: torch.nn.Module, path: str | Path) -> None:
    """The raw model's weights, whole or not at all; Unwritable. DDP's own names begin with "module."."""
    with files.writing(f"--save-model {path}"), files.whole(path) as part:
        write_out(raw_model.state_dict(), part)
