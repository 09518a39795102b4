"""A checkpoint file that is whole at every moment.

torch.save writes it, and torch.load(PATH, weights_only=True) reads it: loading runs no code.
"""

import contextlib
import io
import logging
import os
import tempfile
import uuid
import zipfile
from pathlib import Path

import torch

from trainer import files

log = logging.getLogger("course")


class Unusable(files.Refused):
    """A checkpoint that this run cannot go on from. One line says why."""


class Checkpoint:
    """The file, and the one before it. BlockingIOError where another run has it."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.lock = open(f"{path}.lock", "a")  # noqa: SIM115 - held until this process ends, however it ends
        files.lock(self.lock)

    def write(self, state: dict) -> None:
        """Replace the file by `state`. At every moment PATH or PATH.previous is whole: the new file is flushed to the
        disk before it takes the name. Unwritable, and no change, where it cannot be written."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        part, previous = (Path(f"{self.path}.{ending}") for ending in ("part", "previous"))
        with files.writing(self.path):
            try:
                with open(part, "wb") as file:
                    file.write(buffer.getbuffer())
                    file.flush()
                    os.fsync(file.fileno())
                if self.path.exists():
                    os.replace(self.path, previous)
                os.replace(part, self.path)
            finally:
                part.unlink(missing_ok=True)
            folder = os.open(self.path.parent, os.O_RDONLY)
            with contextlib.suppress(OSError):  # some file systems have no fsync for folders
                os.fsync(folder)  # the names, too, must reach the disk
            os.close(folder)

    def read(self) -> dict | None:
        """The newest whole state, or None where there is no file. Unusable where there are only damaged ones."""
        damaged = []
        for path in (self.path, Path(f"{self.path}.previous")):
            try:
                state = load(path)
            except FileNotFoundError:
                continue
            except Unusable as error:
                damaged.append(f"{path}: {error}")
                continue
            if damaged:
                log.warning("%s. Going on from %s.", damaged[0], path)
                if self.path.exists():  # else the next write would push it over the good one
                    with files.writing(self.path):
                        os.replace(self.path, f"{self.path}.damaged")
            return state
        if damaged:
            raise Unusable(f"{'; '.join(damaged)}: move it away, or --resume never")
        return None


def load(path: Path) -> dict:
    """The state in a file. Unusable where a part of it does not have the CRC-32 that torch.save wrote beside it:
    torch.load does not look."""
    try:
        with zipfile.ZipFile(path) as archive:
            if part := archive.testzip():
                raise Unusable(f"damaged: the CRC-32 of {part} does not fit")
        return torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, Unusable):
        raise
    except Exception as error:  # a damaged or foreign file can fail in any way
        raise Unusable(f"damaged, or no checkpoint ({f'{type(error).__name__}: {error}'.splitlines()[0]})") from None


def save_model(raw_model: torch.nn.Module, path: str | Path) -> None:
    """The raw model's weights, whole or not at all. DDP's own names begin with "module.".

    Where `path` cannot be written after all, they go to a file beside it, or to the system's folder for such files;
    the Unwritable that is then raised names it.
    """
    weights = raw_model.state_dict()
    try:
        with files.whole(path) as part:
            torch.save(weights, part)
    except (OSError, RuntimeError) as error:  # torch.save raises either
        why = str(error).splitlines()[0]
        raise files.Unwritable(f"--save-model {path}: {why}. {rescue(weights, path)}") from None


def rescue(weights: dict, path: str | Path) -> str:
    """Write the weights beside `path`, or else where the system keeps such files, and say where they are."""
    for folder in (Path(path).parent, tempfile.gettempdir()):
        file = Path(folder, f"rescued-{uuid.uuid4().hex}.pt")  # nobody else's, in a folder for all
        try:
            with files.whole(file) as part:
                torch.save(weights, part)
        except (OSError, RuntimeError):
            continue
        return f"The weights are in {file}"
    return "They could not be written anywhere else"
