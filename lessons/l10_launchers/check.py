"""Exercises of lesson 10: a function for mp.spawn, three launches that failed, and one line for two hosts."""

import contextlib
import inspect
import io
import os
import re
import shlex
import string
import subprocess
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import run as torchrun

from course.exercise import Case, Wrong, exercise, first_line
from course.hosts import Cluster
from course.on_ranks import exercise_on_ranks
from course.rendezvous import free_port


# Exercise 1: a function for mp.spawn
def be_rank(rank, world_size, port, file):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size,
                            timeout=timedelta(seconds=30))
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    if rank == 0:
        file.write_text(str(total.item()))
    dist.destroy_process_group()


def be_otherwise(change, rank, world_size, port, file):
    """`be_rank`, with some arguments of init_process_group changed; None: left out."""
    arguments = {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": world_size,
                 "timeout": timedelta(seconds=30)} | change
    dist.init_process_group("gloo", **{name: value for name, value in arguments.items() if value is not None})
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        file.write_text(str(total.item()))
    dist.destroy_process_group()


def reads_the_environment(rank, world_size, port, file):
    be_otherwise({"rank": int(os.environ["RANK"])}, rank, world_size, port, file)


def no_group(rank, world_size, port, file):
    if rank == 0:
        file.write_text(str(rank + 1))


def returns_it(rank, world_size, port, file):
    be_rank(rank, world_size, port, Path(os.devnull))
    return world_size * (world_size + 1) // 2


def all_write(rank, world_size, port, file):
    be_rank(rank, world_size, port, Path(os.devnull))
    file.open("a").write(str(world_size * (world_size + 1) // 2))


def own_number(rank, world_size, port, file):
    be_rank(rank, world_size, port, Path(os.devnull))
    if rank == 0:
        file.write_text(str(rank + 1))


def stays_in_the_group(rank, world_size, port, file):
    with mock.patch.object(dist, "destroy_process_group", lambda: None):
        be_rank(rank, world_size, port, file)


class CannotMeet(Exception):
    """The ranks asked for groups in which they would wait in vain."""


def right_request(rank, ranks):
    return {"init_method": "tcp://127.0.0.1:PORT", "world_size": ranks, "rank": rank, "timeout": "a timedelta"}


def measure_be_rank(function, context):
    """What it asks of init_process_group, and what it leaves behind. The ranks meet only if they can."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)  # mp.spawn sets none
    port = context.gather("port", free_port() if context.rank == 0 else None)[0]
    file, init_process_group = Path(context.folder, "sum.txt"), dist.init_process_group
    measured = {"request": None, "error": None, "returned": None}

    def noted(*args, **kwargs):
        call = inspect.signature(init_process_group).bind(*args, **kwargs)
        request = {name: call.arguments.get(name) for name in ("init_method", "world_size", "rank")}
        if re.fullmatch(rf"tcp://.*:{port}", str(request["init_method"])):
            request["init_method"] = "tcp://127.0.0.1:PORT"  # the port differs from run to run
        measured["request"] = request | {"timeout": call.arguments.get("timeout") and "a timedelta"}
        requests = context.gather("request", measured["request"])
        if requests != [right_request(rank, context.world_size) for rank in range(context.world_size)]:
            raise CannotMeet
        call.arguments["timeout"] = timedelta(seconds=context.timeout)
        init_process_group(*call.args, **call.kwargs)

    try:
        with mock.patch.object(dist, "init_process_group", noted):
            measured["returned"] = function(context.rank, context.world_size, port, file) is not None
    except NotImplementedError:
        raise
    except CannotMeet:
        pass
    except Exception as error:
        measured["error"] = first_line(error)
    if measured["request"] is None:
        context.gather("request", None)
    context.gather("done", True)
    return measured | {"file": file.read_text().strip() if file.exists() else None, "in group": dist.is_initialized()}


@exercise_on_ranks(
    measure_be_rank,
    solution=be_rank,
    group=False,
    hint="mp.spawn passes the number of the process first, and that is the rank. Nothing stands in the environment: "
    "name init_method, rank and world_size yourself. Then dist.all_reduce, a file that rank 0 writes, and "
    "dist.destroy_process_group().",
    mistakes={
        "Without a group no process can add up the numbers of all.": no_group,
        "mp.spawn sets no variable. It passes the number of the process as the first argument of your function.":
            reads_the_environment,
        "Without init_method torch takes env://, and nobody has set MASTER_ADDR and the other variables. mp.spawn "
        "gives a process its number and no more. Name the place: tcp://127.0.0.1 and the port.":
            partial(be_otherwise, {"init_method": None}),
        "An address does not tell a process which rank it is: give rank and world_size, too.":
            partial(be_otherwise, {"rank": None, "world_size": None}),
        "mp.spawn passes each process its number first: use it.": partial(be_otherwise, {"rank": 0}),
        "Each process would make a group of its own.": partial(be_otherwise, {"rank": 0, "world_size": 1}),
        "The port that your function is given is free. Another port may be in use by the next job.":
            partial(be_otherwise, {"init_method": "tcp://127.0.0.1:29500"}),
        "Without a timeout the others wait for half an hour if one process does not come.":
            partial(be_otherwise, {"timeout": None}),
        "mp.spawn throws away the value that a function returns: leave the result in the file.": returns_it,
        "Every process has written into the file.": all_write,
        "That is rank 0's own number: all_reduce adds up the numbers of all.": own_number,
        "Call dist.destroy_process_group(). Without it torch warns, and with nccl the end may hang.":
            stays_in_the_group,
    },
)
def spawned(ranks):
    """Processes that were told nothing but their numbers made a group, added up, and one of them wrote the sum
    where the parent can read it."""
    n = len(ranks)
    errors = [measured["error"] for measured in ranks if measured["error"]]
    yield Case([error.split(":")[0] for error in errors], [], f"It raised {''.join(errors[:1])}.")
    requests = [measured["request"] for measured in ranks]
    callers = [rank for rank, request in enumerate(requests) if request]
    yield Case(callers, list(range(n)), f"Of {n} processes {len(callers)} call dist.init_process_group.")
    for name in right_request(0, n):
        got = [request and request[name] for request in requests]
        right = [right_request(rank, n)[name] for rank in range(n)]
        got_text, right_text = (", ".join(dict.fromkeys(map(str, values))) for values in (got, right))
        yield Case(got, right,
                   f"In the {n} processes init_process_group gets {name}={got_text}; {right_text} is right.")
    file, total = ranks[0]["file"], str(sum(range(1, n + 1)))
    left = "a return value" if file is None and any(measured["returned"] for measured in ranks) else file
    yield Case(left, total, "The file is not there." if file is None else f"The file holds {file!r}; {total} is right.")
    yield Case([measured["in group"] for measured in ranks], [False] * n,
               "The sum is right, but the processes do not leave the group.")


# Exercise 2: three launches that failed, results/recorded/failed-launches/
CAUSES = {"A": "rank 1", "B": "node", "C": "port"}


@exercise(
    solution=CAUSES,
    hint="Begin at the end of each. Is there a block that names the rank that failed first? Else the last line is the "
    "error, and the lines above it only say where it came from.",
    mistakes={
        "Rank 0 lost its connection to the rank that failed first. Which rank was that?": CAUSES | {"A": "rank 0"},
        "If rank 0 fails first, it stands in torchrun's last block, under Root Cause.":
            dict.fromkeys(CAUSES, "rank 0"),
        "If rank 1 fails first, it stands in torchrun's last block, under Root Cause.":
            dict.fromkeys(CAUSES, "rank 1"),
        "If a port is taken, torchrun cannot listen: EADDRINUSE, address already in use.":
            dict.fromkeys(CAUSES, "port"),
        "If a node does not come, the rendezvous ends by a timeout, before any rank has printed a word.":
            dict.fromkeys(CAUSES, "node"),
        "If torchrun does not know an option, it prints its usage, and `error: unrecognized arguments`.":
            dict.fromkeys(CAUSES, "option"),
    },
)
def failures(answer):
    """The last line of torchrun names the error; where ranks had begun, its Root Cause names the first that failed. In
    A rank 0 complains too, of a closed connection: it had waited for rank 1. `why_it_failed.py --log FILE` reads a
    console in this way."""
    causes, known = answer() if callable(answer) else answer, ("port", "node", "rank 0", "rank 1", "option")
    if not isinstance(causes, dict) or causes.keys() != CAUSES.keys():
        raise Wrong('Answer with a dict that has the letters A, B and C, such as {"A": "port", …}.')
    if unknown := [cause for cause in causes.values() if cause not in known]:
        raise Wrong(f"There is no cause {unknown[0]!r}. The five are: {', '.join(known)}.")
    for letter, right in CAUSES.items():
        yield Case(causes[letter], right, f"The cause of {letter} is not {causes[letter]!r}.")


# Exercise 3: one line for two hosts
SCRIPT = "lessons/l10_launchers/hello_rank.py"
LINE = ("torchrun --nnodes=2 --node-rank=$NODE --nproc-per-node=2 --master-addr=$MASTER --master-port=29500 "
        f"{SCRIPT}")


def read_by_torchrun(typed):
    """torchrun's own reading of a command, a namespace; or a string, the error."""
    words = shlex.split(typed)
    while words and "=" in words[0]:  # OMP_NUM_THREADS=1 torchrun ...
        words.pop(0)
    if words[1:3] == ["-m", "torch.distributed.run"]:
        words[:3] = ["torchrun"]
    if words[:1] != ["torchrun"]:
        return "it does not begin with torchrun"
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return torchrun.get_args_parser().parse_args(words[1:])
    except SystemExit:  # argparse's way to give up
        return errors.getvalue().strip().partition("error: ")[2]


def on_host(line, node):
    """A Case for each setting of the torchrun that is typed on this host."""
    typed = string.Template(line).safe_substitute(NODE=node, MASTER="node0")
    options, here = read_by_torchrun(typed), f"On node{node}"
    error = options if isinstance(options, str) else None
    yield Case(error, None, f"{here} torchrun does not understand {typed!r}: {error}.")
    if error is not None:
        return
    yield Case(options.training_script, SCRIPT,
               f"{here} torchrun starts {options.training_script}, not {SCRIPT}. The first word that is no option of "
               "torchrun is the script.")
    ours = ("--nnodes", "--node-rank", "--nproc-per-node", "--master-addr", "--master-port")
    words = [word.split("=")[0].replace("_", "-") for word in options.training_script_args]
    yield Case([word for word in words if word in ours], [], f"{here} the script is given {', '.join(words)}.")
    yield Case(options.standalone, False, f"{here} the job is standalone.")
    yield Case(options.rdzv_backend, "static", f"{here} the rendezvous is {options.rdzv_backend}; static is right.")
    yield Case(options.nnodes, "2", f"{here} torchrun would make a job of {options.nnodes} nodes; 2 is right.")
    yield Case(options.nproc_per_node, "2", f"{here} torchrun would start {options.nproc_per_node} ranks; 2 is right.")
    yield Case(options.node_rank, node, f"{here} $NODE is {node}, and --node-rank is {options.node_rank}.")
    place = f"{options.master_addr}:{options.master_port or 29500}"
    yield Case(place, "node0:29500", f"{here} torchrun would meet the others at {place}; node0:29500 is right.")


def typed_on_hosts(line):
    """The Case of two hosts on which the line is typed."""
    seconds = 60  # for both hosts
    with tempfile.TemporaryFile("w+") as output, Cluster(2) as cluster:
        started = [cluster.start(node, ["sh", "-c", line], stdin=subprocess.DEVNULL, stdout=output,
                                 stderr=subprocess.STDOUT) for node in (0, 1)]
        give_up = time.monotonic() + seconds
        while any(process.poll() is None for process in started) and time.monotonic() < give_up:
            time.sleep(0.1)
        statuses = [process.poll() for process in started]
        output.seek(0)
        console = output.read()
    ranks = sorted(map(int, re.findall(r"rank (\d+), attempt 0", console)))
    last = console.strip().splitlines()[-1:] or ["nothing"]
    return Case([statuses, ranks], [[0, 0], [0, 1, 2, 3]],
                f"Typed on two hosts, the line ended with the exit statuses {statuses} (None: no end within {seconds} "
                f"s), and the ranks {ranks} said who they are; 0, 1, 2 and 3 are right. The last output was: {last[0]}")


@exercise(
    solution=LINE,
    hint="torchrun's options come first, then the script. How many nodes are there, which one is this ($NODE), how "
    "many ranks start here, and at which address and port does the first one listen?",
    mistakes={
        "Both hosts type the same line, and $NODE differs between them.": LINE.replace("$NODE", "0"),
        "The nodes are numbered from 0, as $NODE is.": LINE.replace("$NODE", "$((NODE+1))"),
        "Four is the world size. --nproc-per-node counts the ranks of one node.":
            LINE.replace("--nproc-per-node=2", "--nproc-per-node=4"),
        "The words after the script go to the script. torchrun's own options must come before it.":
            f"torchrun --nproc-per-node=2 {SCRIPT} --nnodes=2 --node-rank=$NODE --master-addr=$MASTER "
            "--master-port=29500",
        "--standalone is for a job on one node: each host would start a job of its own.":
            LINE.replace("torchrun", "torchrun --standalone"),
        "Without --nnodes it would not wait for the other host.": LINE.replace("--nnodes=2 ", ""),
        "Without --master-addr torchrun looks for the others on its own host.":
            LINE.replace("--master-addr=$MASTER ", ""),
        "The hosts would not meet. Both must go to the first host, node0.": LINE.replace("$MASTER", "node$NODE"),
        "The hosts would not meet, because each goes to a port of its own.": LINE.replace("29500", "2950$NODE"),
        "That rendezvous gives out the numbers itself. Here you number the nodes, without --rdzv-…":
            f"torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-id=1 --rdzv-endpoint=$MASTER:29400 "
            f"{SCRIPT}",
    },
)
def line(answer):
    """torchrun's own parser reads it as node 0 and as node 1 of one job of four ranks, meeting at node0; and where this
    machine can make two hosts, it was typed on both: four ranks said who they are."""
    text = answer() if callable(answer) else answer
    if not isinstance(text, str):
        raise Wrong(f"Answer with the command as text, in quotes; this is {text!r}.")
    cases = [case for node in (0, 1) for case in on_host(text, node)]
    yield from cases
    if all(case.got == case.right for case in cases) and Cluster.available() is None:
        yield typed_on_hosts(text)
