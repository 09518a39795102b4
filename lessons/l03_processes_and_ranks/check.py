"""Exercises of notebook 03: a process that becomes a rank, and the program that starts the ranks."""

import contextlib
import inspect
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch.distributed as dist

from course import processes
from course.exercise import Case, exercise, mistake
from course.on_ranks import exercise_on_ranks, patched
from course.rendezvous import free_port
from lessons.l03_processes_and_ranks import acting
from lessons.start.ours import join as join_part
from lessons.start.ours import launch as launch_part

PER_NODE = 2  # ranks of a pretended node, so that rank and local rank differ
LONGEST = 60  # seconds that a wait may last

# ---------------------------------------------------------------------------------------------------------- join


def measure_join(join, context):
    """What join() gives on this rank, and with which timeout; what leave() leaves; and what join() gives alone."""
    port = context.gather("port", free_port())[0]
    variables = {"RANK": str(context.rank), "LOCAL_RANK": str(context.rank % PER_NODE),
                 "WORLD_SIZE": str(context.world_size), "LOCAL_WORLD_SIZE": str(PER_NODE), "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port)}
    seen, init_process_group = {"timeout": None}, dist.init_process_group

    def recorded(*args, **options):
        call = inspect.signature(init_process_group).bind(*args, **options)
        bound = call.arguments.get("timeout")
        seen["timeout"] = bound.total_seconds() if isinstance(bound, timedelta) else None
        if bound is None or seen["timeout"]:
            call.arguments["timeout"] = timedelta(seconds=context.timeout)
        init_process_group(*call.args, **call.kwargs)

    with patched(join, init_process_group=recorded):
        os.environ.update(variables)
        seen["returned"] = listed(join())
        leave = getattr(join, "__globals__", vars(join_part))["leave"]  # it stands in the same file
        seen["group"] = dist.get_world_size() if dist.is_initialized() else 0
        context.gather("joined", True)
        leave()
        seen["left"] = not dist.is_initialized()
        for name in variables:
            del os.environ[name]
        try:
            seen["alone"] = listed(join())
            leave()
        except Exception as error:  # the learner's, where nobody else waits for it
            seen["alone"] = f"{type(error).__name__}: {error}"
    return seen


def listed(returned):
    """What join() returned, for JSON: the device by its type."""
    return [getattr(part, "type", part) for part in returned] if isinstance(returned, tuple) else repr(returned)


@exercise_on_ranks(
    measure_join,
    solution=join_part.join,
    hint=(
        "Whoever started the process has said who it is: in `os.environ`, as text. A process that nobody has "
        "launched finds nothing there.",
        "`dist.init_process_group` reads the environment by itself; it needs the backend and a timeout, a "
        "`timedelta(seconds=…)`. Call it only where `RANK` is set.",
        "`rank = int(os.environ.get(\"RANK\", 0))`, and so the world size, with 1. `if \"RANK\" in os.environ: "
        "dist.init_process_group(\"gloo\", timeout=timedelta(seconds=30))`."),
    mistakes={
        "LOCAL_RANK counts the processes of one node, and begins again on the next. The rank counts those of the job.":
            mistake(join_part.join, {'("RANK", 0)': '("LOCAL_RANK", 0)'}),
        "What stands in os.environ is text: int(…) makes a number of it.":
            mistake(join_part.join, {"int(os.environ.get(name, default))": "os.environ.get(name, default)"}),
        "The variables alone connect nobody. The ranks meet in dist.init_process_group.":
            mistake(join_part.join, {'if "RANK" in os.environ': "if False"}),
        "Without a timeout gloo takes its default. If a rank does not come, the others wait "
        f"{dist.distributed_c10d.default_pg_timeout.total_seconds() / 60:g} minutes before they say so.":
            mistake(join_part.join, {", timeout=WAIT": ""}),
        "A number is no timeout: write timedelta(seconds=30).":
            mistake(join_part.join, {"timeout=WAIT": "timeout=30"}),
        "The first argument of timedelta is days: write timedelta(seconds=30).":
            mistake(join_part.join, {"timeout=WAIT": "timeout=timedelta(30)"}),
        "A process that was started by hand has no RANK: os.environ.get(name, default) gives it one, and it joins no "
        "group.":
            mistake(join_part.join, {".get(name, default)": "[name]"}),
    },
    ranks=2 * PER_NODE,
    group=False,
)
def join(ranks):
    """Your processes have become one group, whoever launched them. One that was started by hand works alone, and no
    wait is endless."""
    size = len(ranks)
    for rank, seen in enumerate(ranks):
        yield Case(seen["returned"], [rank, size, "cpu"], f"RANK is {rank}, LOCAL_RANK is {rank % PER_NODE} and "
                   f"WORLD_SIZE is {size}. join() returned {seen['returned']}, in place of ({rank}, {size}, cpu).")
        yield Case(seen["group"], size, f"After join() rank {rank} is in a group of {seen['group']}, not of {size}.")
        bounded = seen["timeout"] is not None and 1 <= seen["timeout"] <= LONGEST
        yield Case("bounded" if bounded else seen["timeout"], "bounded",
                   f"The longest wait of the group, in seconds: {seen['timeout'] or 'not set'}. At most {LONGEST} will "
                   "do.")
    for seen in ranks:
        yield Case(seen["left"], True, "After leave() the rank is still in the group.")
        alone = seen["alone"]
        yield Case(alone if isinstance(alone, list) else "no triple", [0, 1, "cpu"],
                   f"Started by hand, without a launcher, join() and leave() gave {alone}. A process alone is rank 0 "
                   "of 1, and has no group to leave.")


# -------------------------------------------------------------------------------------------------------- launch


@dataclass
class Launched:
    """What a launcher did with ranks that play their parts."""

    status: object
    ranks: list[dict]
    """what each noted, in the order of RANK"""
    left: int
    """processes that still ran a second after it had returned"""

    @property
    def own_ends(self) -> list[str]:
        return [rank["RANK"] for rank in self.ranks if rank["own end"]]


def launched(launch: Callable, *ends: str, wait: float = 20) -> Launched:
    """Let `launch` start a rank for each of these ends (acting.py), and count what it leaves. All of it is ended."""
    mark = uuid.uuid4().hex
    env = processes.environment(mark) | {acting.FROM_CALLER: "yes"}
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, env):
        for name in acting.VARIABLES[:-1]:  # a launcher of this process may have set them
            os.environ.pop(name, None)
        try:
            status = launch(len(ends), [sys.executable, acting.__file__, folder, *ends], wait)
            give_up = time.monotonic() + 1
            while (left := len(processes.marked(mark))) and time.monotonic() < give_up:
                time.sleep(0.05)
        finally:
            processes.end(mark)
        ranks = [json.loads(file.read_text()) for file in Path(folder).glob("*.json")]
    return Launched(status, sorted(ranks, key=lambda rank: rank["RANK"] or ""), left)


def one_after_another(count, command, wait):
    return max(subprocess.run(command, env=os.environ | {"RANK": str(rank)}, check=False).returncode
               for rank in range(count))


def cases_of(launch):
    """The requirements, one after another."""
    well = launched(launch, "0", "0", "0")
    met = sum(rank["met"] for rank in well.ranks)
    yield Case(met, 3, f"launch(3, …) is to start 3 processes that run at the same time. {met} of them met the others.")
    for number, rank in enumerate(well.ranks):
        right = {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3",
                 acting.FROM_CALLER: "yes"}
        for name, value in right.items():
            yield Case(rank[name], value, f"Of 3 processes one has {name}={rank[name]}, in place of {value}." if
                       name != acting.FROM_CALLER else "A variable of your own environment does not reach the ranks.")
        addresses = ("localhost", "127.0.0.1")
        yield Case(addresses[0] if rank["MASTER_ADDR"] in addresses else rank["MASTER_ADDR"], addresses[0],
                   f"MASTER_ADDR is {rank['MASTER_ADDR']}. All ranks meet on this machine: localhost.")
        port = well.ranks[0]["MASTER_PORT"]
        yield Case((rank["MASTER_PORT"] or "").isdigit() and rank["MASTER_PORT"] == port, True,
                   f"MASTER_PORT is {port} and {rank['MASTER_PORT']} on two ranks. It is one port for all.")
    yield Case(well.status, 0, f"All ranks ended with status 0, and launch returned {well.status}.")
    taken = well.ranks[0]["MASTER_PORT"]
    with socket.socket() as another_job:
        with contextlib.suppress(ValueError, OSError):  # it is no port, or somebody has it
            another_job.bind(("", int(taken)))
            another_job.listen()
        port = launched(launch, "0").ranks[0]["MASTER_PORT"]
    yield Case(port != taken, True, f"Another program listens at port {taken}, and your job got that port, too: its "
                                    "rank 0 could not listen there. Ask the system for a free one.")
    for end, what in (("3", "ended with status 3"), ("killed", "was killed")):
        yield from ended(launched(launch, "hangs", end), f"Rank 1 {what}, while rank 0 waited for it.")
    yield from ended(launched(launch, "hangs", "hangs", wait=1), "Both ranks hung, and `wait` was 1 second.")


def ended(job, what):
    """The cases of a job that could not succeed."""
    yield Case(len(job.own_ends), 0, f"{what} {len(job.own_ends)} of the ranks ran on to an end of their own. On a "
                                     "cluster that end is hours away.")
    yield Case(job.left, 0, f"{what} launch returned, and {job.left} of the processes still ran.")
    yield Case(bool(job.status), True, f"{what} launch returned {job.status}: whoever started the job takes that for "
                                       "success.")


@exercise(
    solution=launch_part.launch,
    hint=(
        "Two halves. First start all, and wait for none. Then look at all of them, again and again, until you "
        "know how the job has ended.",
        "`subprocess.Popen(command, env=…)` returns at once. `poll()` is None while a process runs, then its "
        "status. A socket that is bound to port 0 gets a free port: `getsockname()[1]`. What has to happen on "
        "every way out of the second half?",
        "Start: `[subprocess.Popen(command, env={**os.environ, \"RANK\": str(rank), …}) for rank in "
        "range(count)]`. Then, in a `try`, until `wait` seconds have passed: `statuses = [process.poll() for "
        "process in ranks]`; return a status that is neither None nor 0; return 0 where all are 0; sleep a "
        "moment. Behind the loop return 124. In its `finally`: `kill()` each, then `wait()` for each."),
    mistakes={
        "subprocess.run waits for the end of a process before you start the next one. Popen does not wait.":
            one_after_another,
        "An environment variable is text: str(number).": mistake(launch_part.launch, {'"RANK": str(rank)':
                                                                                      '"RANK": rank'}),
        "`env` replaces the whole environment. Add your variables to those of os.environ.":
            mistake(launch_part.launch, {"**os.environ, ": ""}),
        "How many ranks are on this node? main.py and others ask LOCAL_WORLD_SIZE.":
            mistake(launch_part.launch, {'"LOCAL_WORLD_SIZE": str(count), ': ""}),
        "A port that stands in the program is taken sooner or later. Bind a socket to port 0, and ask it which port it "
        "got.": mistake(launch_part.launch, {"probe.getsockname()[1]": "29517"}),
        "Waiting for the ranks one by one, you see rank 1 fail only when rank 0 has ended. Poll all of them.":
            mistake(launch_part.launch, {"if failed:": "if failed and None not in statuses:"}),
        "What you start you have to end: on every way out, so in a `finally`.":
            mistake(launch_part.launch, {"process.kill()": "process.poll()", "process.wait()": "process.poll()"}),
        "A process that a signal has ended has a status below 0, and that is no success either.":
            mistake(launch_part.launch, {"if status]": "if status and status > 0]"}),
        "Where ranks wait for each other nobody fails. Only a clock ends that.":
            mistake(launch_part.launch, {"while time.monotonic() < give_up": "while True"}),
        "It ends the ranks, and does not say that one has failed: return its status.":
            mistake(launch_part.launch, {"return failed[0]": "return 0"}),
    },
    limit=60,
)
def launch(answer):
    """Of 3 ranks one failed, one was killed, and two hung. Your launcher left no process behind, and told each failure
    from success. Now it can start a training."""
    for case in cases_of(answer):
        yield case
        if case.got != case.right:
            return
