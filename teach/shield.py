"""Runs a learner's code where it can hurt nobody: bubblewrap (`bwrap`) makes a room, and a watch ends it.

The room holds the system's programs, this Python, and the files of the course that the checks need, all read-only. Its
two writable folders lie in memory and have a limited size. Its network reaches only itself. Its processes end with it.
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
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import psutil

from course import processes
from course.lesson import ROOT
from teach import handed_in
from teach.answers import CELLS
from teach.handed_in import Paper

Verdict = tuple[str, str, str]  # name of the exercise, one of OUTCOMES, message to the learner
MEMORY, DISK, PRINTED, PROCESSES = 4 * 10**9, 200 * 10**6, 10**6, 150  # bytes, bytes, bytes, and how many
LOOK = 0.1  # seconds between two looks
ON_RANKS = 200  # seconds, twice START and LIMIT in course/on_ranks.py: for an answer, then for the typical mistakes
OUTCOMES = ("right", "wrong", "untried", "again")
STOPPED = threading.Event()  # set when grading is ended from outside: every watch ends its room
DESK = "/tmp/desk"  # in the room: the folder where it works
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix", "/sys", "/etc/alternatives",
          "/etc/group", "/etc/hosts", "/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd")
COURSE = ("course", "examples", "lessons", "trainer")  # and the files at the root
KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH")  # of the environment: no secret of its owner


class NoShield(OSError):
    """No room can be made here. The message says why, and what to do."""


def room(hidden: Iterable[Path]) -> list[str]:
    """The command that starts a program in a room. `hidden`: folders that it must not see."""
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


def check() -> None:
    """NoShield if no room can be made."""
    otherwise = "; --no-shield does without, where you trust what was handed in"
    if not shutil.which("bwrap"):
        raise NoShield("no answer may hurt this machine: apt install bubblewrap (Linux only)" + otherwise)
    made = subprocess.run([*room([]), sys.executable, "-c", ""], capture_output=True, text=True, timeout=30)
    if made.returncode:
        raise NoShield(f"bubblewrap makes no room here ({made.stderr.strip()[:200]})" + otherwise)


def judged(paper: Paper, hidden: Iterable[Path], seed: str, limit: float, shielded: bool) -> list[Verdict]:
    """A verdict on each question of the paper: see teach/judge.py.

    An answer that breaks a limit loses its own point; the next ones are judged in another room. `hidden`: the folders
    with everybody's hand-ins. `limit`: seconds of one answer. `shielded`: False starts the judge without a room.
    """
    verdicts, waiting = [], list(paper.questions)
    while waiting:
        reached, stopped = in_a_room(replace(paper, questions=waiting, seed=seed), hidden, limit, shielded)
        verdicts += reached
        waiting = waiting[len(reached):]
        if waiting and (stopped or not reached):
            message = f"Not yet. It was stopped: {stopped or 'it said nothing'}."
            verdicts.append((waiting.pop(0).name, "wrong", message))
    return verdicts


def in_a_room(paper, hidden, limit, shielded):
    """(the verdicts that were reached, why the judge was stopped or None)."""
    paper = replace(paper, seal=uuid.uuid4().hex)
    with tempfile.TemporaryDirectory() as desk:
        reader, writer = os.pipe()
        command = [*(room(hidden) if shielded else []), sys.executable, "-P", "-m", "teach.judge", str(writer),
                   str(limit)]
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": DESK if shielded else desk,
                        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1"}  # nobody's modules but ours
        mark = uuid.uuid4().hex
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   pass_fds=(writer,), env=processes.environment(mark, environment), cwd=desk,
                                   start_new_session=True)  # Ctrl-C is for us: it must not look like an answer's end
        os.close(writer)
        watch = Watch(process, reader, limit, paper)
        try:
            with contextlib.suppress(BrokenPipeError):  # the judge ended at once: the watch says how
                process.stdin.write(handed_in.as_json(paper).encode())
                process.stdin.close()
            return watch.until_it_ends()
        finally:
            process.kill()  # and the room ends with it
            processes.end(mark, seconds=60)  # 150 forks take their time to die on a busy machine
            process.wait()
            process.stdout.close()
            os.close(reader)


def authentic(output: bytes, paper: Paper) -> list[Verdict]:
    """The verdicts in the judge's output: whole lines with the paper's seal, each on the next question."""
    verdicts = []
    for line in output.split(b"\n")[:-1]:
        seal, _, text = line.partition(b" ")
        if seal == paper.seal.encode() and len(verdicts) < len(paper.questions):
            name, outcome, message = json.loads(text)
            if name == paper.questions[len(verdicts)].name and outcome in OUTCOMES:
                verdicts.append((name, outcome, message))
    return verdicts


class Watch:
    """Reads the judge's verdicts and the answers' prints, looks at memory and processes, and stops what goes too far.
    """

    def __init__(self, process, reader, limit, paper):
        self.process, self.reader, self.limit, self.paper = process, reader, limit, paper
        self.output, self.printed, self.last_words = b"", 0, b""

    def until_it_ends(self):
        """(the verdicts that were reached, why it was stopped or None)."""
        started, verdicts = time.monotonic() + CELLS, []  # the learner's cells come first
        open_ends, stopped = [self.reader, self.process.stdout], None
        while open_ends and not stopped:
            ready, _, _ = select.select(open_ends, [], [], LOOK)
            for end in ready:
                data = os.read(end if isinstance(end, int) else end.fileno(), 1 << 16)
                if not data:
                    open_ends.remove(end)
                elif end == self.reader:
                    self.output += data
                else:
                    self.printed, self.last_words = self.printed + len(data), (self.last_words + data)[-300:]
            if len(reached := authentic(self.output, self.paper)) > len(verdicts):
                started, verdicts = time.monotonic(), reached
            stopped = self.too_far(time.monotonic() - started)
        return verdicts, stopped or self.how_it_ended()

    def too_far(self, seconds):
        """Why the judge must be stopped, or None. InterruptedError if the whole grading is stopped."""
        if STOPPED.is_set():
            raise InterruptedError("grading was stopped")
        if max(self.printed, len(self.output)) > PRINTED:
            return f"it printed more than {PRINTED / 1e6:g} MB"
        if seconds > self.limit + ON_RANKS:  # the judge itself ends an answer earlier
            return f"no end within {self.limit + ON_RANKS:g} s"
        try:
            members = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return None
        if len(members) > PROCESSES:
            return f"it started more than {PROCESSES} processes"
        if all(sum(bytes_of(member, exact) for member in members) > MEMORY for exact in (False, True)):
            return f"it took more than {MEMORY / 1e9:g} GB of memory"
        return None

    def how_it_ended(self):
        status = self.process.wait()
        words = self.last_words.decode(errors="replace").strip().splitlines()
        return f"its judge ended with status {status}: {words[-1] if words else 'it said nothing'}" if status else None


def bytes_of(process, exact):
    """Memory of a process, without torch's files, which all map. `exact`: of the pages that ranks share since they were
    forked its part alone. The system takes milliseconds to tell that."""
    with contextlib.suppress(psutil.NoSuchProcess):
        with contextlib.suppress(psutil.AccessDenied):  # the judge lets nobody look
            if exact:
                return process.memory_full_info().pss
        used = process.memory_info()
        return used.rss - used.shared
    return 0
