"""Exercises of notebook 10. The line for two hosts is asked of torchrun's own parser, then typed on them; the function
for mp.spawn runs on ranks: course/on_ranks.py says how."""

import inspect
import os
import re
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

from course.exercise import Wrong, because, exercise
from course.hosts import Cluster
from course.on_ranks import Answers, first_line
from course.rendezvous import free_port
from lessons.l10_launchers.commands import parsed

# Exercise 2: three launches that failed, results/recorded/failed-launches/
CAUSES = {"A": "rank 1", "B": "node", "C": "port"}
# What a console with this cause shows.
SHOWN = {
    "port": "torchrun cannot listen: EADDRINUSE, address already in use",
    "node": "the rendezvous ends by a timeout, before any rank has said a word",
    "rank 0": "rank 0 stands in torchrun's last block, under Root Cause",
    "rank 1": "rank 1 stands in torchrun's last block, under Root Cause",
    "option": "torchrun prints its usage, and `error: unrecognized arguments`",
}


@exercise(
    solution=CAUSES,
    hint="Begin at the end of each. Is there a block that names the rank that failed first? Else the last line is the "
    "error, and the lines above it only say where it came from.",
    mistakes={"who complained last": CAUSES | {"A": "rank 0"},
              "two changed places": CAUSES | {"B": "port", "C": "node"}, "an option": CAUSES | {"B": "option"}},
)
def failures(attempt):
    """The last line of torchrun names the error; where ranks had begun, its Root Cause names the first that failed. In
    A rank 0 complains too, of a closed connection: it had waited for rank 1. `why_it_failed.py --log FILE` reads a
    console in this way."""
    answer = attempt() if callable(attempt) else attempt
    if not isinstance(answer, dict) or set(answer) != set(CAUSES):
        raise Wrong('Answer with a dict that has the letters A, B and C, such as {"A": "port", …}.')
    if unknown := [cause for cause in answer.values() if cause not in SHOWN]:
        raise Wrong(f"There is no cause {unknown[0]!r}. The five are: {', '.join(SHOWN)}.")
    for letter, cause in answer.items():
        if cause != CAUSES[letter]:
            raise because(f"{letter} is not {cause!r}: with that {SHOWN[cause]}, and that is not so here.",
                          (letter == "A" and cause == "rank 0", "Rank 0 lost its connection to the one that failed "
                           "first. Who was that?"))


# Exercise 3: one line for two hosts
SCRIPT, WITHIN = "lessons/l10_launchers/hello_rank.py", 60  # seconds that both hosts have for it
LINE = ("torchrun --nnodes=2 --node-rank=$NODE --nproc-per-node=2 --master-addr=$MASTER --master-port=29500 "
        f"{SCRIPT}")
OURS = ("--nnodes", "--node-rank", "--nproc-per-node", "--master-addr", "--master-port")


@exercise(
    solution=LINE,
    hint="torchrun's options come first, then the script. How many nodes are there, which one is this ($NODE), how "
    "many ranks start here, and at which address and port does the first one listen?",
    mistakes={
        "the same number on both": LINE.replace("$NODE", "0"),
        "counted from 1": LINE.replace("$NODE", "$((NODE+1))"),
        "the world size as ranks per node": LINE.replace("--nproc-per-node=2", "--nproc-per-node=4"),
        "the script first": f"torchrun --nproc-per-node=2 {SCRIPT} --nnodes=2 --node-rank=$NODE --master-addr=$MASTER "
                            "--master-port=29500",
        "--standalone": LINE.replace("torchrun", "torchrun --standalone"),
        "no --nnodes": LINE.replace("--nnodes=2 ", ""),
        "no address": LINE.replace("--master-addr=$MASTER ", ""),
        "each its own address": LINE.replace("$MASTER", "node$NODE"),
        "each its own port": LINE.replace("29500", "2950$NODE"),
        "a rendezvous by c10d": f"torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-id=1 "
                                f"--rdzv-endpoint=$MASTER:29400 {SCRIPT}",
    },
)
def line(attempt):
    """torchrun's own parser reads it as node 0 and as node 1 of one job of four ranks, meeting at node0; and where this
    machine can make two hosts, it was typed on both: four ranks said who they are."""
    text = attempt() if callable(attempt) else attempt
    places = [judge_line(text, node) for node in (0, 1)]
    if places[0] != places[1]:
        raise Wrong(f"The hosts would not meet: node0 goes to {places[0]}, node1 to {places[1]}.")
    if Cluster.available() is None:
        type_on_hosts(text)


def judge_line(text, node):
    """Where the torchrun of this host would meet the other. Wrong, where it would not be this node of two."""
    typed = string.Template(text).safe_substitute(NODE=node, MASTER="node0") if isinstance(text, str) else text
    found, on = parsed(typed, SCRIPT), f"On node{node}"
    if any(word.split("=")[0].replace("_", "-") in OURS for word in found.training_script_args):
        raise Wrong("What stands after the script goes to the script. torchrun's own options must come before it.")
    if found.standalone:
        raise Wrong("--standalone is for a job on one node: each host would start a job of its own.")
    if found.rdzv_backend != "static":
        raise Wrong("That is a rendezvous that gives out the numbers itself. Here each host is to be told its own, "
                    "without --rdzv-…")
    if found.nnodes != "2":
        raise Wrong(f"torchrun would make a job of {found.nnodes} node(s), and not wait for the other host.")
    if found.nproc_per_node != "2":
        raise because(f"{on} torchrun would start {found.nproc_per_node} rank(s), and not 2.",
                      (found.nproc_per_node == "4", "Four is the world size. The option counts the ranks of a node."))
    if found.node_rank != node:
        raise Wrong(f"{on} --node-rank is {found.node_rank}. Both hosts type the same line: $NODE is what differs.")
    if found.master_addr != "node0":
        raise because(f"{on} torchrun would look for the others at {found.master_addr}. All meet at the first host.",
                      (found.master_addr == "127.0.0.1", "That is its default: itself."))
    return f"{found.master_addr}:{found.master_port or 29500}"


def type_on_hosts(text):
    """Wrong, unless the four ranks of two hosts then say who they are."""
    with tempfile.TemporaryFile("w+") as said, Cluster(2) as cluster:
        started = [cluster.start(node, ["sh", "-c", text], stdin=subprocess.DEVNULL, stdout=said,
                                 stderr=subprocess.STDOUT) for node in (0, 1)]
        give_up = time.monotonic() + WITHIN
        while any(process.poll() is None for process in started) and time.monotonic() < give_up:
            time.sleep(0.1)
        ends = [process.poll() for process in started]
        said.seek(0)
        console = said.read()
    ranks = sorted(map(int, re.findall(r"rank (\d+), attempt 0", console)))
    if ends != [0, 0] or ranks != [0, 1, 2, 3]:
        last = console.strip().splitlines()[-1:] or ["nothing"]
        raise Wrong(f"Typed on two hosts, the ranks {ranks} said who they are, and the exit statuses were {ends} "
                    f"(None: not done within {WITHIN} s). Last said: {last[0]}")


# Exercise 1: a function for mp.spawn, on ranks
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
    asked = {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": world_size,
             "timeout": timedelta(seconds=30)} | change
    dist.init_process_group("gloo", **{name: value for name, value in asked.items() if value is not None})
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        file.write_text(str(total.item()))
    dist.destroy_process_group()


def reads_the_environment(rank, world_size, port, file):
    be_otherwise({"rank": int(os.environ["RANK"])}, rank, world_size, port, file)


def returns_it(rank, world_size, port, file):
    be_otherwise({}, rank, world_size, port, Path(os.devnull))
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


def not_together(asked, ranks, port):
    """Why processes that ask init_process_group for this, a dict each, are no group; None: they are."""
    sizes, numbers, places = ([one and one[name] for one in asked] for name in ("world_size", "rank", "init_method"))
    for rank, one in enumerate(asked):
        if one is None:
            return f"Process {rank} does not call dist.init_process_group."
    if None in places:
        return ("Without init_method it is env://, and nobody has set MASTER_ADDR and the others: mp.spawn tells a "
                "process its number and no more. Name the place, tcp://127.0.0.1 and the port.")
    if {None, -1} & {*sizes, *numbers}:
        return "An address does not tell a process who it is: give rank and world_size, too."
    if set(sizes) != {ranks}:
        return (f"world_size is {sizes[0]}, and {ranks} processes run: each would make a group of its own, or wait for "
                "others than these.")
    if numbers != list(range(ranks)):
        return f"The processes call themselves rank {numbers}. mp.spawn passes each its number first: use that."
    if any(not place.startswith("tcp://") or not place.endswith(f":{port}") for place in places):
        return f"They would meet at {places[0]}. The port {port} is free; another may be in use by the next job."
    if any(one["timeout"] is None for one in asked):
        return "There is no timeout: if one process does not come, the others wait for half an hour."
    return None


def measure_be_rank(function, here):
    """What it asks of init_process_group, and what then stands in the file. They meet only where that can work."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)  # mp.spawn sets none
    port = here.gather("port", free_port() if here.rank == 0 else None)[0]
    file, real, found = Path(here.folder, "sum.txt"), dist.init_process_group, {"returned": None}

    def noted(*args, **kwargs):
        arguments = inspect.signature(real).bind(*args, **kwargs)
        timeout = arguments.arguments.get("timeout")
        asked = {name: arguments.arguments.get(name) for name in ("init_method", "rank", "world_size")}
        asked["timeout"] = repr(timeout) if timeout is not None else None
        found["apart"] = not_together(here.gather("asked", asked), here.world_size, port)
        if not found["apart"]:
            arguments.arguments["timeout"] = timedelta(seconds=here.timeout)
            real(*arguments.args, **arguments.kwargs)

    try:
        with mock.patch.object(dist, "init_process_group", noted):
            found["returned"] = function(here.rank, here.world_size, port, file)
    except NotImplementedError:
        raise
    except Exception as error:  # what it asked for tells more
        found["error"] = first_line(error)
    if "apart" not in found:
        found["apart"] = not_together(here.gather("asked", None), here.world_size, port)
    here.gather("done", True)
    return found | {"file": file.read_text() if file.exists() else None, "in_group": dist.is_initialized()}


answers = Answers({"be_rank": measure_be_rank}, group=False)


@exercise(
    solution=be_rank,
    hint="mp.spawn passes the number of the process first, and that is the rank. Nothing stands in the environment: "
    "name init_method, rank and world_size yourself. Then dist.all_reduce, a file that rank 0 writes, and "
    "dist.destroy_process_group().",
    mistakes={"asks the environment": reads_the_environment, "env://": partial(be_otherwise, {"init_method": None}),
              "no rank": partial(be_otherwise, {"rank": None, "world_size": None}),
              "all are rank 0": partial(be_otherwise, {"rank": 0}),
              "a group of one": partial(be_otherwise, {"rank": 0, "world_size": 1}),
              "a fixed port": partial(be_otherwise, {"init_method": "tcp://127.0.0.1:29500"}),
              "no timeout": partial(be_otherwise, {"timeout": None}), "returns it": returns_it,
              "all write": all_write, "its own number": own_number, "stays in the group": stays_in_the_group},
)
def spawned(attempt):
    """Processes that were told nothing but their numbers made a group, added up, and one of them wrote the sum
    where the parent can read it."""
    found = answers.findings("be_rank", attempt)
    errors, total = [one["error"] for one in found if "error" in one], sum(range(1, len(found) + 1))
    if any("KeyError" in error for error in errors):
        raise Wrong(f"{errors[0]}: mp.spawn sets no variable. It passes the number of the process, and your function "
                    "has it: its first argument.")
    if found[0]["apart"] and not ("does not call" in found[0]["apart"] and errors):
        raise Wrong(found[0]["apart"])
    if errors:
        raise Wrong(f"It raised {errors[0]}.")
    if found[0]["file"] is None:
        raise because("The file is not there.", (any(one["returned"] is not None for one in found), "mp.spawn throws "
                      "away what a function returns: a result must be left somewhere."))
    if found[0]["file"].strip() != str(total):
        raise because(f"The file holds {found[0]['file']!r}, and should hold {total}.",
                      (found[0]["file"] == str(total) * len(found), "Every process has written it."),
                      (found[0]["file"] == "1", "That is rank 0's own number: all_reduce adds up those of all."))
    if any(one["in_group"] for one in found):
        raise Wrong("The sum is right. But the processes end without dist.destroy_process_group(): torch warns, and "
                    "with nccl the end may hang.")
