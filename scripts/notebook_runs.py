"""Executes a lesson with papermill: shows how far it is, says what failed, and leaves nothing running."""

import base64
import ctypes
import io
import os
import re
import resource
import shutil
import signal
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbconvert.filters import strip_ansi
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from PIL import Image, ImageChops, ImageStat

from course import processes, twins

EXECUTED = Path("build/notebooks")
MARK = uuid.uuid4().hex  # finds what a notebook left running
BURIED = 5  # seconds that all of a notebook's processes have to end
PR_SET_CHILD_SUBREAPER = 36  # of Linux's prctl: orphans become children of this program


@dataclass
class Result:
    """The outcome of one notebook; kept in the executed notebook's metadata, where the index reads it."""

    name: str
    tier: str
    status: str = "passed"  # passed, failed or stopped
    seconds: float = 0.0
    cell: int = 0  # number of the failing cell, as in `In [cell]`; 0 when none ran
    error: list[str] = field(default_factory=list)  # the last lines of its output, without colour codes
    finished: str = ""
    others: float | None = None  # cores that other processes, and the host, took meanwhile; None where nobody counts it


class Progress:
    """Shows cell and time while a notebook runs: one live line on a terminal, else a line now and then."""

    def __init__(self, label):
        self.label, self.cells, self.cell, self.expected, self.seconds = label, 0, 0, "", 0.0
        self.live, self.done = sys.stdout.isatty(), threading.Event()
        self.ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self):
        self.start = time.monotonic()
        self.ticker.start()

    def __exit__(self, *_):
        self.done.set()
        self.ticker.join()
        self.seconds = time.monotonic() - self.start

    def cell_starts(self, **_):
        self.cell += 1

    def _tick(self):
        while not self.done.is_set():
            self.seconds = time.monotonic() - self.start
            self.say(f"cell {self.cell}/{self.cells}")
            self.done.wait(1 if self.live else 20)

    def say(self, what, last=False):
        line = f"{self.label}: {what}, {self.seconds:.0f} s{self.expected}"
        if self.live:  # return to the line's start, clear it; cut, because a wrapped line cannot be cleared
            line = f"\r\033[K{line if last else line[: shutil.get_terminal_size().columns - 1]}"
        print(line, end="\n" if last or not self.live else "", flush=True)


def use_this_python():
    """Makes kernels use the environment of this program, and marks whatever they start."""
    paths = f"{sys.prefix}/share/jupyter", os.environ.get("JUPYTER_PATH")
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, paths))
    os.environ.pop("MPLBACKEND", None)  # pictures belong into the notebook
    os.environ.update(processes.environment(MARK))
    with suppress(AttributeError):  # where there is no prctl; then of_others() has no number either
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def of_others():
    """Processor seconds that this machine has spent on anything but this program and what it has started and seen end:
    other processes, the kernel's own work, what the host gave to other machines. None where there is no /proc/stat."""
    try:
        user, nice, system, _idle, _wait, irq, soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    except FileNotFoundError:
        return None
    give_up = time.monotonic() + BURIED
    with suppress(ChildProcessError):  # there is no child any more
        while time.monotonic() < give_up:  # orphans count as ours once they are buried; large ones take a while to end
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.05)
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    busy = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
    return busy - sum(used.ru_utime + used.ru_stime for used in own)


def execute(name, label, quick, in_place, timeout, most):
    """Runs one notebook, writes build/notebooks/NAME.ipynb; refreshes the committed notebook when `in_place`, nothing
    failed, and others took less than `most` cores. `timeout`: the longest time of a cell, seconds. Call use_this_python
    before."""
    target = EXECUTED / f"{name}.ipynb"
    target.unlink(missing_ok=True)
    result, progress, error = Result(name, "quick" if quick else "full"), Progress(label), None
    before = of_others()
    try:
        built = twins.build(name) if in_place else nbformat.read(twins.NOTEBOOKS / f"{name}.ipynb", as_version=4)
        course = built.metadata.get("course", {})
        tier = course.get("quick", {}) if quick else course
        parameters = tier.get("parameters", {}) if quick else {}
        progress.expected = f" of about {tier['seconds']:.0f} s" if "seconds" in tier else ""
        code = [cell for cell in built.cells if cell.cell_type == "code" and cell.source.strip()]
        progress.cells = len(code) + bool(parameters)  # papermill puts what it sets into a cell of its own
        twins.write(built, target)
        with progress:
            papermill.execute_notebook(target, target, parameters=parameters, kernel_name="python3", progress_bar=False,
                                       execution_timeout=timeout, on_cell_execute=progress.cell_starts,
                                       extra_arguments=["--log-level=CRITICAL"])  # its log would break the live line
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut short what follows
        result.status, error = "stopped", RuntimeError("stopped by Ctrl-C")
    except Exception as problem:  # whatever a notebook does wrong, the next one gets its turn
        result.status, error = "failed", problem
    finally:
        processes.end(MARK)  # torchrun's ranks have sessions of their own, and outlive a kernel that is killed
    result.seconds, result.finished = round(progress.seconds, 1), f"{datetime.now():%Y-%m-%d %H:%M}"
    if before is not None and not error:
        result.others = round(max(0, of_others() - before) / progress.seconds, 3)  # its ticks are coarse
        if in_place and result.others >= most:
            result.status, error = "noisy", RuntimeError(
                f"others took {result.others} of a core, not less than {most}: the committed outputs stay as they were")
    # where the source itself could not be read, there is no target
    notebook = nbformat.read(target, as_version=4) if target.exists() else nbformat.v4.new_notebook()
    tidy(notebook)
    said = result.status + ("" if result.others is None else f", others took {result.others} of a core")
    if error:
        result.cell, result.error = failure(notebook, error, progress.cell, timeout)
        said = "NOISY" if result.status == "noisy" else f"{result.status.upper()} in cell [{result.cell}]"
    progress.say(said, last=True)
    notebook.metadata["course_run"] = asdict(result)
    twins.write(notebook, target)
    if in_place and result.status == "passed":
        twins.commit(twins.as_committed(notebook, built, result.others), name)
    return result


def tidy(notebook):
    """Merges the pieces of a cell's printed text, keeps only the end of a line rewritten in place (a progress bar), and
    makes pictures small."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = re.sub(r"\r+\n", "\n", output.text)  # `!command` runs on a pseudo-terminal
            elif picture := output.get("data", {}).get("image/png"):
                output.data["image/png"] = base64.b64encode(small_png(base64.b64decode(picture))).decode()
    CoalesceStreamsPreprocessor().preprocess(notebook, {})


def failure(notebook, error, cell, timeout):
    """Number of the failing cell and the last lines of its output, without colour codes."""
    if isinstance(error, CellTimeoutError):
        return cell, [f"the cell took longer than {timeout} s and was stopped (--timeout sets the limit)"]
    if isinstance(error, DeadKernelError):
        return cell, ["the kernel died: often the machine ran out of memory"]
    if not isinstance(error, papermill.PapermillExecutionError):
        return cell, f"{type(error).__name__}: {strip_ansi(str(error)).strip()}".splitlines()[-6:]
    outputs = [output for each in notebook.cells if each.get("execution_count") == error.exec_count
               for output in each.get("outputs", [])]
    printed = "".join(output.text for output in outputs if output.output_type == "stream")  # a command says there why
    lines = printed.splitlines()[-6:] + f"{error.ename}: {error.evalue}".splitlines()[-6:]
    return error.exec_count, [strip_ansi(line) for line in lines if line.strip()]


def small_png(png: bytes) -> bytes:
    """The same PNG with a palette of 256 colours, a third of the bytes; as it came where somebody would see a
    difference (a photograph), or where it was small already. A repository keeps every version of each."""
    with Image.open(io.BytesIO(png)) as image:
        colours = image.convert("RGB")
    few = colours.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    off = max(ImageStat.Stat(ImageChops.difference(colours, few.convert("RGB"))).mean)  # levels, of 255
    few.save(file := io.BytesIO(), "PNG", optimize=True)
    return min(png, file.getvalue(), key=len) if off < 0.5 else png
