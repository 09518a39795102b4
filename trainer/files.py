"""Files that are written whole or not at all, locks, and paths that are checked before anything begins. No torch."""

import importlib
import logging
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:
    raise ImportError("This needs Linux or macOS. On Windows: WSL, see site/pages/systems.md.") from None

log = logging.getLogger("course")


def check_output(option: str, path: str | Path) -> None:
    """Make the folder of a file that is to be written; ValueError where that cannot be a file, or not be written."""
    there = Path(path)
    if not str(path):
        raise ValueError(f"{option}: an empty name is no file")
    if str(path).endswith(os.sep) or there.is_dir():
        raise ValueError(f"{option} {path} is a folder: name a file")
    if there.is_symlink() and not there.exists():
        raise ValueError(f"{option} {path}: is a link to {os.readlink(there)}, which is not there")
    if there.exists() and not there.is_file():
        raise ValueError(f"{option} {path}: is no regular file (a pipe or a device, say); name another")
    check_writable(option, there.parent)
    try:
        part_of(path).touch()  # a name can be too long
    finally:
        part_of(path).unlink(missing_ok=True)


def check_input(option: str, path: str | Path) -> None:
    """ValueError where no regular file can be read: a pipe would be waited for."""
    try:
        regular = stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        raise ValueError(f"{option} {path}: {error.strerror}") from None
    if not regular:
        raise ValueError(f"{option} {path}: is no regular file")


def from_file(address: str):
    """The class or function NAME of an address FILE.py:NAME. A loader's workers find it, too, by its name. Refused
    where the file has no such name, or where the file's own name is that of another module."""
    path, name = address.rsplit(":", 1)
    file, stem = Path(path).resolve(), Path(path).stem
    sys.path.append(str(file.parent))
    module = importlib.import_module(stem)
    if Path(getattr(module, "__file__", None) or "").resolve() != file:
        raise Refused(f"{path}: a module {stem} is loaded already; rename the file")
    if not hasattr(module, name):
        raise Refused(f"{path} has no {name}")
    return getattr(module, name)


def part_of(path: str | Path) -> Path:
    return Path(f"{path}.{os.getpid()}.part")


@contextmanager
def whole(path: str | Path) -> Iterator[Path]:
    """A file beside `path` to write to. It takes that name when the block ends well, and is deleted if the block
    raises."""
    part = part_of(path)
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class Refused(OSError):
    """An error that no change of the code can mend: ranks that did not come, a full disk, a damaged file. Its text is
    one line, and says what to do."""


class Unwritable(Refused):
    """A log, a checkpoint or weights could not be written, for example because the disk is full. One line
    says which, and why."""


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Unwritable where the block cannot write to `path`."""
    try:
        yield
    except OSError as error:
        raise Unwritable(f"{path}: {error.strerror or error}") from None


def check_writable(option: str, folder: str | Path) -> None:
    if not str(folder):
        raise ValueError(f"{option}: an empty name is no folder")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        why = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise ValueError(f"{option}: cannot write in {folder} ({why}): name another folder") from None


def lock(file: IO) -> bool:
    """Lock an open file until this process ends. Returns whether the lock was taken: False, with a warning, if the file
    system has no locks. BlockingIOError if another process holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BlockingIOError(error.errno, "another run is writing to it", file.name.removesuffix(".lock")) from None
    except OSError as error:  # some network file systems
        log.warning("%s cannot be locked (%s): take care that no second run writes to it", file.name, error.strerror)
        return False
    os.register_at_fork(after_in_child=file.close)  # a loader's workers would hold it after this process was killed
    return True


@contextmanager
def file_lock(path: str | Path, timeout: float = 1800) -> Iterator[bool]:
    """Wait for `path` and hold it: see lock(). After `timeout` seconds TimeoutError names the holder."""
    with open(path, "a+") as handle:
        give_up = time.monotonic() + timeout
        while True:
            try:
                locked = lock(handle)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    handle.seek(0)
                    raise TimeoutError(f"process {os.getpid()} waited {timeout} s for {path}, which process "
                                       f"{handle.read().strip() or '?'} holds") from None
                time.sleep(0.2)
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield locked
