"""Files that are written whole or not at all, locks, and paths that are checked before anything begins. No torch."""

import hashlib
import importlib.util
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:
    raise ImportError("This needs Linux or macOS. On Windows, use WSL.") from None

log = logging.getLogger("course")
DATA = os.environ.get("COURSE_DATA") or "./data"  # folder of the data files; many people can share one that they read


class Refused(OSError):
    """A user error, or a failure outside the code: ranks that did not come, a full disk, a damaged file. Its text is
    one line, and says what to do. main.py prints it without a traceback and ends with status 2."""


class Unwritable(Refused):
    """A log, a checkpoint or weights could not be written, because the disk is full, say. Its line says which, and
    why."""


def check_output(option: str, path: str | Path) -> None:
    """Make the folder of a file that is to be written. ValueError, which names `option`, where it cannot be."""
    if not str(path):
        raise ValueError(f"{option}: an empty name is no file")
    if str(path).endswith(os.sep) or Path(path).is_dir():
        raise ValueError(f"{option} {path} is a folder: name a file")
    check_writable(option, Path(path).parent)
    try:
        part_of(path).touch()  # a name can be too long
    finally:
        part_of(path).unlink(missing_ok=True)


def check_input(option: str, path: str | Path) -> None:
    """ValueError, which names `option`, unless `path` is a file that can be read."""
    try:
        open(path, "rb").close()
    except OSError as error:
        raise ValueError(f"{option} {path}: {error.strerror}") from None


def check_writable(option: str, folder: str | Path) -> None:
    """Make a folder. ValueError, which names `option`, where nothing can be written in it."""
    if not str(folder):
        raise ValueError(f"{option}: an empty name is no folder")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        why = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise ValueError(f"{option}: cannot write in {folder} ({why}): name another folder") from None


def from_file(address: str) -> Any:
    """The class or function NAME of a user's FILE.py:NAME. Refused where the file has no such name.

    The file becomes a module with a private name, so that it may be called data.py or utils.py. What it imports at its
    top is looked for in its own folder first, and then here. What its functions import is looked for here first: there
    a utils.py of its own is not found.
    """
    path, _, name = address.rpartition(":")
    file = Path(path).resolve()
    private = f"{file.stem}_{hashlib.sha1(str(file).encode()).hexdigest()[:8]}"
    if private not in sys.modules:
        spec = importlib.util.spec_from_file_location(private, file)
        assert spec and spec.loader  # a name that ends in .py has both
        module = sys.modules[private] = importlib.util.module_from_spec(spec)
        ours = {known: sys.modules.pop(known) for known in {"main", "utils"} & sys.modules.keys()}
        sys.path.insert(0, str(file.parent))
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[private]
            raise
        finally:
            sys.modules.update(ours)
            sys.path.remove(str(file.parent))
            sys.path.append(str(file.parent))  # for what its functions import
    if not hasattr(sys.modules[private], name):
        raise Refused(f"{path} has no {name}")
    return getattr(sys.modules[private], name)


def part_of(path: str | Path) -> Path:
    """The file that becomes `path` when it is whole; another one for each process."""
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


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Unwritable where the block cannot write to `path`."""
    try:
        yield
    except OSError as error:
        raise Unwritable(f"{path}: {error.strerror or error}") from None


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
