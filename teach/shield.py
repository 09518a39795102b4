"""Runs a learner's code where it can hurt nobody: bubblewrap (`bwrap`) makes a room, and a watch ends it.

The room holds the system's programs, this Python, and the files of the course that the checks need, all read-only. Its
two writable folders lie in memory and have a limited size. Its network reaches only itself. Its processes end with it.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from course.lesson import ROOT
from teach.handed_in import Paper
from teach.judge import CELLS

Verdict = tuple[str, str, str]  # name of the exercise; "right", "wrong", "untried" or "again"; message to the learner
LIMIT = 60  # seconds of a cell; an answer gets LIMIT + ON_RANKS
ON_RANKS = 200  # seconds, twice START and LIMIT in course/on_ranks.py: for an answer, then for the typical mistakes
DISK, PROCESSES = 200 * 10**6, 150  # bytes, and how many
STOPPED = threading.Event()  # set when grading is ended from outside: every watch ends its room
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix", "/sys", "/etc/alternatives",
          "/etc/group", "/etc/hosts", "/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd")
COURSE = ("main.py", "utils.py", "trainer", "course", "lessons", "examples", "teach")
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH")  # of the environment: no secret of its owner


def room() -> list[str]:
    """The command that starts a program in a room."""
    python = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1],
              *(Path(path) for path in sys.path if path.endswith("-packages"))}
    shown = [*SYSTEM, *map(str, sorted(python)), *(str(ROOT / name) for name in COURSE)]
    return ["bwrap", "--dev", "/dev",
            *(word for path in ("/tmp", "/dev/shm") for word in ("--size", str(DISK), "--tmpfs", path)),
            *(word for path in shown for word in ("--ro-bind-try", path, path)),
            "--proc", "/proc", "--dir", "/tmp/desk", "--chdir", "/tmp/desk", "--remount-ro", "/dev", "--remount-ro",
            "/", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]


def check() -> None:
    """OSError if no room can be made; it says what to install."""
    if not shutil.which("bwrap"):
        raise OSError("grading needs bubblewrap: apt install bubblewrap (Linux only)")
    made = subprocess.run([*room(), sys.executable, "-c", ""], capture_output=True, text=True, timeout=30)
    if made.returncode:
        raise OSError(f"bubblewrap makes no room here ({made.stderr.strip()[:200]})")


def judged(paper: Paper) -> list[Verdict]:
    """A verdict on each question of the paper: see teach/judge.py. An answer that ends its room loses its own point;
    the next ones are judged in another room. InterruptedError if the whole grading is stopped."""
    verdicts, waiting = [], list(paper.questions)
    while waiting:
        ran, reached, why = in_a_room(replace(paper, questions=waiting))
        verdicts += reached
        waiting = waiting[len(reached):]
        if not ran:  # no other room would fare better
            return verdicts + [(question.name, "wrong", f"Not yet. The notebook's cells: {why}.")
                               for question in waiting]
        if waiting:
            verdicts.append((waiting.pop(0).name, "wrong", f"Not yet. It was stopped: {why}."))
    return verdicts


def in_a_room(paper: Paper) -> tuple[bool, list[Verdict], str]:
    """(whether all cells have run, the verdicts that were reached, why there are no more)."""
    with tempfile.TemporaryDirectory() as desk, tempfile.TemporaryFile("w+") as text:
        json.dump(asdict(paper), text)
        text.seek(0)
        reader, writer = os.pipe()
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": "/tmp/desk",
                        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}  # nobody's modules but ours
        process = subprocess.Popen(
            [*room(), sys.executable, "-P", "-m", "teach.judge", str(writer), str(LIMIT)], stdin=text,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=(writer,), env=environment, cwd=desk,
            start_new_session=True)  # Ctrl-C is for us: it must not look like an answer's end
        os.close(writer)
        try:
            return watched(process, reader)
        finally:
            process.kill()  # and the room ends with it
            process.wait()
            process.stdout.close()
            os.close(reader)


def watched(process, reader):
    """What in_a_room() returns."""
    lines, last_words, until = b"", b"", time.monotonic() + CELLS + LIMIT  # the learner's cells come first
    open_ends, why = [reader, process.stdout.fileno()], None
    while open_ends and not why:
        for end in select.select(open_ends, [], [], 0.5)[0]:
            if not (data := os.read(end, 1 << 16)):
                open_ends.remove(end)
            elif end == reader:
                lines, until = lines + data, time.monotonic() + LIMIT + ON_RANKS
            else:
                last_words = (last_words + data)[-300:]
        if STOPPED.is_set():
            raise InterruptedError("grading was stopped")
        if time.monotonic() > until:
            why = "it came to no end"
        with suppress(psutil.NoSuchProcess):
            if len(psutil.Process(process.pid).children(recursive=True)) > PROCESSES:
                why = f"it started more than {PROCESSES} processes"
    ran, *verdicts = [json.loads(line) for line in lines.split(b"\n")[:-1]] or [""]
    if not why:
        said = last_words.decode(errors="replace").strip().splitlines()
        why = f"its process ended (status {process.wait(LIMIT)})" + (f": {said[-1]}" if said else "")
    return ran == "ran", [tuple(each) for each in verdicts], why
