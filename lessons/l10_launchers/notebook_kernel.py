"""A second notebook kernel, for cells that may hang: each has a time limit, and is killed with all that it started.

In a notebook:

    from lessons.l10_launchers.notebook_kernel import SecondKernel
    second = SecondKernel(ranks=2)           # each such name is a variable over there
    second.register()                        # from now on there are two cell magics:

    %%second_kernel                          # runs there, now, and whenever that kernel has to start anew
    %%attempt --limit 20 name of the attempt # runs there; its outcome is printed, and kept in second.outcomes

It is a kernel like that of any notebook: what a cell defines stands in a `__main__` that no other process can import.
"""

import atexit
import re
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass

import nbformat
from IPython import get_ipython
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from nbclient import NotebookClient

from course import processes
from course.lesson import ROOT

# Another process, which outlives the notebook's kernel where that is killed, and then kills what is left.
GUARD = "import sys; from course import processes; sys.stdin.read(); processes.end(sys.argv[1])"
START_LIMIT = 60  # seconds for the kernel to start, and for the cell of %%second_kernel
# multiprocessing's tracker is to outlive each attempt, so none may be the first to start it
PRELUDE = """
from multiprocessing import resource_tracker
resource_tracker.ensure_running()
get_ipython().system_raise_on_error = True
"""
COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")
ERROR_LINE = re.compile(r"^(?:\[\w+\]:\s*)*((?:\w+\.)*\w*(?:Error|Exception)(?::\s.*)?)$", re.MULTILINE)


@dataclass
class Outcome:
    """What became of an attempt."""

    end: str  # worked, failed or killed
    seconds: float
    printed: str
    said: str  # what stood on stderr: the processes' own words
    trace: str  # the kernel's traceback, as a notebook shows it; empty if there is none
    error: str  # its last line or lines, `Name: message`
    returned: str  # the value of the cell's last line
    left: int  # processes that it left running, and that were killed

    @property
    def worked(self):
        return self.end == "worked"

    @property
    def essential(self):
        """Of all lines the one to look at: the first error that a process told of, else the kernel's own last line."""
        told = ERROR_LINE.findall(f"{self.said}\n{self.printed}")
        return told[0] if told else self.error.strip().split("\n")[-1]

    def __str__(self):
        if self.worked:
            return f"→ worked, {self.seconds:.1f} s"
        if self.end == "killed":
            return f"→ no end within {self.seconds:.0f} s: killed, with {self.left - 1} processes that it had started"
        lines = len(f"{self.printed}{self.said}{self.trace}".splitlines())
        return f"→ failed after {self.seconds:.1f} s, with {lines} lines. The one to look at:\n{self.essential}"


class SecondKernel:
    """Starts with the first attempt, and anew after one that was killed."""

    def __init__(self, **variables):
        self.variables, self.setup, self.outcomes = variables, "", {}
        self.manager, self.running = None, ExitStack()
        atexit.register(self.end)

    def register(self):
        """Make the magics of this object those of the notebook."""
        get_ipython().register_magic_function(self.attempt_cell, "cell", "attempt")
        get_ipython().register_magic_function(self.setup_cell, "cell", "second_kernel")

    def start(self):
        self.end()
        self.mark = uuid.uuid4().hex  # in the environment of the kernel, and so of all that it starts
        guard = subprocess.Popen([sys.executable, "-c", GUARD, self.mark], cwd=ROOT, stdin=subprocess.PIPE,
                                 start_new_session=True)
        self.running.enter_context(guard)  # at the end its stdin is closed, and it is waited for
        self.running.callback(processes.end, self.mark)
        # nbclient runs cells asynchronously; a manager of this class has a client that waits, and that Ctrl-C ends
        self.manager = NotebookClient(nbformat.v4.new_notebook(), kernel_manager_class="jupyter_client.KernelManager"
                                      ).create_kernel_manager()
        self.running.callback(self.manager.cleanup_resources)
        self.manager.start_kernel(env=processes.environment(self.mark), stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        self.client = self.manager.blocking_client()
        self.running.callback(self.client.stop_channels)
        self.client.start_channels()
        self.client.wait_for_ready(timeout=START_LIMIT)
        values = "".join(f"{name} = {value!r}\n" for name, value in self.variables.items())
        self._set_up(PRELUDE + values + self.setup)

    def end(self):
        """Kill the kernel and all that it started."""
        self.running.close()
        self.manager = None

    def attempt(self, way, code, limit):
        """The Outcome of `code`, which has `limit` seconds."""
        if not self._runs():
            self.start()
        before = processes.marked(self.mark)  # the kernel, and what descends from it, also where the parent is gone
        told = defaultdict(list)  # {stdout, stderr, execute_result or error: contents of the kernel's messages}

        def collect(message):
            told[message["content"].get("name", message["msg_type"])].append(message["content"])

        start = time.monotonic()
        try:
            self._execute(code, limit, collect)
            seconds = time.monotonic() - start
            end, left = "failed" if told["error"] else "worked", processes.end(self.mark, spared=before)
        except TimeoutError:
            seconds = time.monotonic() - start
            end, left = "killed", 1 + len(set(processes.marked(self.mark)) - set(before))
            self.end()
        except BaseException:  # Ctrl-C
            self.end()
            raise
        printed, said = ("".join(part["text"] for part in told[stream]) for stream in ("stdout", "stderr"))
        trace = "\n".join(line for problem in told["error"] for line in problem["traceback"])
        error = "\n".join(f"{problem['ename']}: {problem['evalue']}" for problem in told["error"])
        returned = "".join(result["data"]["text/plain"] for result in told["execute_result"])
        clean = [COLOUR_CODES.sub("", text).replace("\r\n", "\n") for text in (printed, said, trace)]
        self.outcomes[way] = Outcome(end, seconds, *clean, error, returned, left)
        return self.outcomes[way]

    def _set_up(self, code):
        reply = self._execute(code, START_LIMIT, lambda message: None)["content"]
        if reply["status"] != "ok":
            self.end()
            raise RuntimeError(f"the second kernel could not be set up: {reply['ename']}: {reply['evalue']}")

    def _execute(self, code, limit, hook):
        return self.client.execute_interactive(code, store_history=False, allow_stdin=False, timeout=limit,
                                               output_hook=hook)

    def _runs(self):
        return self.manager is not None and self.manager.is_alive()

    @magic_arguments()
    @argument("--limit", type=float, default=60, help="seconds until it is killed")
    @argument("--show", type=int, help="print so many lines of the output; default: all")
    @argument("way", nargs="+", help="what is tried")
    def attempt_cell(self, line, cell):
        options = parse_argstring(SecondKernel.attempt_cell, line)
        outcome = self.attempt(" ".join(options.way), cell, options.limit)
        lines = outcome.printed.rstrip("\n").splitlines()
        shown = lines[:options.show]
        if len(shown) < len(lines):
            shown.append(f"… and {len(lines) - len(shown)} more lines")
        print(*shown, *filter(None, [outcome.returned, str(outcome)]), sep="\n")

    def setup_cell(self, line, cell):
        """Run the cell in the second kernel, now, and whenever that has to start anew."""
        self.setup = cell
        if self._runs():
            self._set_up(cell)
        else:
            self.start()
