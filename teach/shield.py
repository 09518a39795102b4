"""Runs what a learner has written where it can hurt nobody: bubblewrap (`bwrap`) makes the room, and a watch ends it.

In the room stand the system's programs, this Python, and of the course what the checks need, to be read only. The two
folders that can be written are in memory, and of limited size; there is no network but that of the room itself. All
processes end with it.
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

import psutil

from course import processes
from course.lesson import ROOT
from teach import handed_in

MEMORY, DISK, PRINTED, PROCESSES = 4 * 10**9, 200 * 10**6, 10**6, 150  # bytes, bytes, bytes, and how many
LOOK = 0.1  # seconds between two looks
OUTCOMES = ("right", "wrong", "untried")
STOPPED = threading.Event()  # grading was ended from outside: every watch ends its room
DESK = "/tmp/desk"  # in the room: the folder where it works
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix", "/sys", "/etc/alternatives",
          "/etc/group", "/etc/hosts", "/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd")
COURSE = ("course", "lessons", "scripts/minimal.py", "scripts/minimal_ddp.py")  # and the files at the root
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH")  # of the environment: no word of whose it is


class NoShield(OSError):
    """Why there is no room here, and what to do."""


def room(hidden):
    """The command with which a program is started to be in a room. `hidden`: folders that it must not see."""
    python = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1]}
    shown = [*map(Path, SYSTEM), *sorted(python), *(ROOT / name for name in COURSE), *ROOT.glob("*.py"),
             *ROOT.glob("teach/*.py")]
    hidden = [path for path in hidden if any(path.is_relative_to(each) for each in shown)]
    return ["bwrap", "--dev", "/dev",
            *(word for path in ("/tmp", "/dev/shm") for word in ("--size", str(DISK), "--tmpfs", path)),
            *(word for path in shown for word in ("--ro-bind-try", str(path), str(path))),
            *(word for path in hidden for word in ("--tmpfs", str(path), "--remount-ro", str(path))),
            "--proc", "/proc", "--dir", DESK, "--chdir", DESK, "--remount-ro", "/dev", "--remount-ro", "/",
            "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]


def check():
    """NoShield where no room can be made."""
    otherwise = "; --no-shield does without, where you trust what was handed in"
    if not shutil.which("bwrap"):
        raise NoShield("no answer may hurt this machine: apt install bubblewrap (Linux only)" + otherwise)
    made = subprocess.run([*room([]), sys.executable, "-c", ""], capture_output=True, text=True, timeout=30)
    if made.returncode:
        raise NoShield(f"bubblewrap makes no room here ({made.stderr.strip()[:200]})" + otherwise)


def judged(paper, hidden, seed, limit, shielded):
    """[(exercise, outcome, why)] of all questions of the paper, as teach/judge.py says it.

    An answer that breaks a limit loses its own point: those after it are judged in another room. `hidden`: the folders
    with what all have handed in. `limit`: seconds of one answer. `shielded`: False starts it without a room.
    """
    verdicts, waiting = [], list(paper.questions)
    while waiting:
        said, stopped = in_a_room(replace(paper, questions=waiting, seed=seed), hidden, limit, shielded)
        verdicts += said
        waiting = waiting[len(said):]
        if waiting and (stopped or not said):
            verdicts.append((waiting.pop(0).name, "wrong", f"Not yet. It was stopped: {stopped or 'it said nothing'}."))
    return verdicts


def in_a_room(paper, hidden, limit, shielded):
    """(the verdicts that were reached, why it was stopped or None)."""
    paper = replace(paper, seal=uuid.uuid4().hex)
    with tempfile.TemporaryDirectory() as desk:
        heard, says = os.pipe()
        command = [*(room(hidden) if shielded else []), sys.executable, "-m", "teach.judge",
                   str(says), str(limit)]
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": DESK if shielded else desk,
                        "PYTHONDONTWRITEBYTECODE": "1"}
        mark = uuid.uuid4().hex
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   pass_fds=(says,), env=processes.environment(mark, environment), cwd=desk,
                                   start_new_session=True)  # Ctrl-C is for us: it must not look like an answer's end
        os.close(says)
        watch = Watch(process, heard, limit, paper)
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended at once: the watch says how
                process.stdin.write(handed_in.as_json(paper).encode())
                process.stdin.close()
            return watch.until_it_ends()
        finally:
            process.kill()  # and the room ends with it
            processes.end(mark)
            process.wait()
            process.stdout.close()
            os.close(heard)


def authentic(said, paper):
    """The verdicts in what was said: whole lines with the paper's seal, each of the question that is next."""
    found = []
    for line in said.split(b"\n")[:-1]:
        seal, _, told = line.partition(b" ")
        if seal == paper.seal.encode() and len(found) < len(paper.questions):
            name, outcome, why = json.loads(told)
            if name == paper.questions[len(found)].name and outcome in OUTCOMES:
                found.append((name, outcome, why))
    return found


class Watch:
    """Hears what the judge says and what answers print, looks at memory and processes, and says when it is enough."""

    def __init__(self, process, heard, limit, paper):
        self.process, self.heard, self.limit, self.paper = process, heard, limit, paper
        self.said, self.printed, self.last_words = b"", 0, b""

    def until_it_ends(self):
        """(the verdicts that were reached, why it was stopped or None)."""
        started, verdicts = time.monotonic(), []
        open_ends, stopped = [self.heard, self.process.stdout], None
        while open_ends and not stopped:
            ready, _, _ = select.select(open_ends, [], [], LOOK)
            for end in ready:
                data = os.read(end if isinstance(end, int) else end.fileno(), 1 << 16)
                if not data:
                    open_ends.remove(end)
                elif end == self.heard:
                    self.said += data
                else:
                    self.printed, self.last_words = self.printed + len(data), (self.last_words + data)[-300:]
            if len(reached := authentic(self.said, self.paper)) > len(verdicts):
                started, verdicts = time.monotonic(), reached
            stopped = self.enough(time.monotonic() - started)
        return verdicts, stopped or self.how_it_ended()

    def enough(self, seconds):
        """Why it must be stopped, or None. InterruptedError where all must."""
        if STOPPED.is_set():
            raise InterruptedError("grading was stopped")
        if max(self.printed, len(self.said)) > PRINTED:
            return f"it printed more than {PRINTED / 1e6:g} MB"
        if seconds > self.limit + 40:  # the judge itself ends an answer after `limit`; a start takes some seconds
            return f"no end within {self.limit + 40:g} s"
        memory = count = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            for member in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    used = member.memory_info()
                    memory, count = memory + used.rss - used.shared, count + 1  # without torch's files, mapped by all
        if count > PROCESSES:
            return f"it started more than {PROCESSES} processes"
        if memory > MEMORY:
            return f"it took more than {MEMORY / 1e9:g} GB of memory"
        return None

    def how_it_ended(self):
        status = self.process.wait()
        words = self.last_words.decode(errors="replace").strip().splitlines()
        return f"its judge ended with status {status}: {words[-1] if words else 'it said nothing'}" if status else None
