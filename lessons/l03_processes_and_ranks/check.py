"""Exercises of notebook 03. What is right comes from the placement that torchrun gives, and from what the ranks did."""

import inspect
import os
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch.distributed as dist

from course.exercise import Case, Wrong, exercise
from course.on_ranks import exercise_on_ranks, patched
from course.rendezvous import free_port

# Of the exercises on ranks, which pretend to have nodes:
HOSTS, PER_NODE = ["localhost", "node1.invalid"], 2


def placements(nodes, per_node):
    """{rank, local_rank, group_rank} of each process where every node has as many, as torchrun places them."""
    return [{"rank": node * per_node + local_rank, "local_rank": local_rank, "group_rank": node}
            for node in range(nodes) for local_rank in range(per_node)]


# Exercise 1: which rank does the job?
def my_turn(job, rank, local_rank):
    if job == "train":
        return True
    if job == "download to the node's own disk":
        return local_rank == 0
    return rank == 0


JOBS = {"train": "each process", "print the loss": "job", "write the checkpoint to the shared disk": "job",
        "download to the node's own disk": "node"}  # once where


@exercise(
    solution=my_turn,
    hint="Count how often it must happen: once in the whole job, once on each node, or in each process?",
    mistakes={
        "The disk of node 1 stays empty: rank 0 runs on node 0. On each node one process must download.":
            lambda job, rank, local_rank: job == "train" or rank == 0,
        "Each node has a local rank 0, so it happens once a node. Once in the whole job is rank 0.":
            lambda job, rank, local_rank: job == "train" or local_rank == 0,
        "All ranks do it at once. Each of them prints its lines, and a file that several ranks write may come out "
        "torn.": lambda job, rank, local_rank: True,
        "All ranks train: a rank that does not come to the all-reduce leaves the others waiting.":
            lambda job, rank, local_rank: rank == 0,
    },
)
def turn(answer):
    """Once in the job: rank 0. Once on each node: local rank 0. And the others must wait for it, at a barrier, before
    they read what it wrote. (Where ranks share one model's weights, as in lesson 13, all write the checkpoint.)"""
    nodes, per_node = 2, 3
    for job, where in JOBS.items():
        everyone = list(range(nodes * per_node))
        right = {"each process": everyone, "job": [0], "node": everyone[::per_node]}[where]
        answers = {process["rank"]: answer(job, process["rank"], process["local_rank"])
                   for process in placements(nodes, per_node)}
        if all(does_it is None for does_it in answers.values()):
            raise Wrong(f"For {job!r} your function returned None on every rank. Return True or False.")
        got = [rank for rank, does_it in answers.items() if does_it]
        yield Case(got, right, f"{nodes} nodes of {per_node} processes, {job!r}: with your answer ranks {got} do it. "
                               f"It should be ranks {right}.")


# Exercise 2: the variables that a launcher sets, and the group
def join(node, local_rank, hosts, per_node, port):
    os.environ.update(RANK=str(node * per_node + local_rank), LOCAL_RANK=str(local_rank),
                      WORLD_SIZE=str(len(hosts) * per_node), MASTER_ADDR=hosts[0], MASTER_PORT=str(port))
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    return dist.get_rank()


def rank_within_the_node(node, local_rank, hosts, per_node, port):
    return join(0, local_rank, hosts, per_node, port)


def local_rank_within_the_job(node, local_rank, hosts, per_node, port):
    return join(0, node * per_node + local_rank, hosts, per_node, port)


def world_of_one_node(node, local_rank, hosts, per_node, port):
    return join(node, local_rank, hosts[:1], per_node, port)


def own_host(node, local_rank, hosts, per_node, port):
    return join(node, local_rank, [hosts[node]] * len(hosts), per_node, port)


def own_port(node, local_rank, hosts, per_node, port):
    return join(node, local_rank, hosts, per_node, port + node * per_node + local_rank)


def numbers_as_variables(node, local_rank, hosts, per_node, port):
    os.environ["RANK"] = node * per_node + local_rank
    return join(node, local_rank, hosts, per_node, port)


def join_with_timeout(timeout, node, local_rank, hosts, per_node, port):
    os.environ.update(RANK=str(node * per_node + local_rank), LOCAL_RANK=str(local_rank),
                      WORLD_SIZE=str(len(hosts) * per_node), MASTER_ADDR=hosts[0], MASTER_PORT=str(port))
    dist.init_process_group("gloo", timeout=timeout)
    return dist.get_rank()


def no_group(node, local_rank, hosts, per_node, port):
    return node * per_node + local_rank


class NotMet(Exception):
    """Ends the learner's function where the ranks would wait for one another in vain."""


def right_request(rank, port):
    """The environment variables and the timeout with which this rank should call init_process_group."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank % PER_NODE), "WORLD_SIZE": str(len(HOSTS) * PER_NODE),
            "MASTER_ADDR": HOSTS[0], "MASTER_PORT": str(port), "timeout": repr(timedelta(seconds=30))}


def measure_join(function, context):
    """What this rank requested when it called init_process_group (None: no call), and what came of it.

    The ranks meet only if all requests are right: else they would wait, and torch would print pages.
    """
    port = context.gather("port", free_port())[0]
    right = [right_request(rank, port) for rank in range(context.world_size)]
    for name in right[0]:
        os.environ.pop(name, None)  # a launcher of this process may have set it
    measured = {"port": port, "request": None}
    init_process_group = dist.init_process_group

    def recorded(*args, **kwargs):
        call = inspect.signature(init_process_group).bind(*args, **kwargs)
        measured["request"] = {name: os.environ.get(name) for name in right[0]}
        measured["request"]["timeout"] = repr(call.arguments.get("timeout"))
        if context.gather("requests", measured["request"]) != right:
            raise NotMet
        call.arguments["timeout"] = timedelta(seconds=context.timeout)
        init_process_group(*call.args, **call.kwargs)

    try:
        with patched(function, init_process_group=recorded):
            measured["returned"] = repr(function(*divmod(context.rank, PER_NODE), list(HOSTS), PER_NODE, port))
        measured["world size"] = dist.get_world_size() if dist.is_initialized() else None
    except NotMet:
        pass
    finally:
        if not measured["request"]:  # the other ranks wait for it
            context.gather("requests", None)
    return measured


@exercise_on_ranks(
    measure_join,
    solution=join,
    hint="Five variables, all of them text: str(number). Before a node stand node * per_node processes. Rank 0 runs on "
    "the first host, and there all meet. Then dist.init_process_group(\"gloo\", timeout=...) finds the rest in them.",
    mistakes={
        "Each process of the job needs a number of its own. With the same numbers on every node, two processes are "
        "rank 0, and all wait for ranks that never come.": rank_within_the_node,
        "The local rank counts the processes of one node, and begins again at 0 on the next.":
            local_rank_within_the_job,
        "The group is complete when the processes of all nodes have come, not those of one node.": world_of_one_node,
        "Nobody listens there: all meet where rank 0 is, on the first host.": own_host,
        "Only one process listens, and all others come to its port.": own_port,
        "Without a timeout gloo takes its default. If a rank does not come, the others wait "
        f"{dist.distributed_c10d.default_pg_timeout.total_seconds() / 60:g} minutes before they say so.":
            partial(join_with_timeout, None),
        "A number is no timeout: write timedelta(seconds=30).": partial(join_with_timeout, 30),
        "The first argument of timedelta is days: write timedelta(seconds=30).":
            partial(join_with_timeout, timedelta(30)),
        "The variables alone connect nobody. The ranks meet in dist.init_process_group.": no_group,
        "An environment variable is text: str(number).": numbers_as_variables,
    },
    ranks=len(HOSTS) * PER_NODE,
    group=False,
)
def joined(ranks):
    """Processes without a launcher have become one group, and each knows its rank. A launcher does little more than
    this: it sets these variables, then starts the processes."""
    for rank, measured in enumerate(ranks):
        process = f"Local rank {rank % PER_NODE} on node {rank // PER_NODE}"
        yield Case(measured["request"] is not None, True, f"{process} does not call dist.init_process_group.")
        for name, right in right_request(rank, measured["port"]).items():
            value = (measured["request"] or {}).get(name, "without a call")
            # The port is another in every run, so a mistake is recognised by the distance from it.
            is_port = name == "MASTER_PORT" and value and value.isdigit()
            got, expected = (int(value) - measured["port"], 0) if is_port else (value, right)
            yield Case(got, expected, f"{process}: when it calls init_process_group, {name} is {value or 'not set'}. "
                                      f"It should be {right}.")
    for rank, measured in enumerate(ranks):
        got = [measured.get("world size"), measured.get("returned")]
        yield Case(got, [len(ranks), str(rank)],
                   f"The ranks met. But rank {rank} is in a group of {got[0]}, and your function returned {got[1]}. It "
                   f"should be a group of {len(ranks)}, and {rank}, from dist.get_rank().")


# Exercise 3: one rank of each node downloads, the others wait
def fetch(local_rank, file, download):
    if local_rank == 0:
        download(file)
    dist.barrier()
    return file.read_text()


def fetch_with(local_rank, file, download, downloads="local rank 0", waits="all"):
    """The solution with other ranks that download, or others that wait for them."""
    mine = {"local rank 0": local_rank == 0, "rank 0": dist.get_rank() == 0, "all": True}[downloads]
    if mine:
        download(file)
    if {"all": True, "downloader": mine, "others": not mine, "none": False}[waits]:
        dist.barrier()
    return file.read_text()


def waits_first(local_rank, file, download):
    dist.barrier()
    if local_rank == 0:
        download(file)
    return file.read_text()


def waits_for_the_name(local_rank, file, download):
    if local_rank == 0:
        download(file)
    while not file.exists():
        time.sleep(0.01)
    return file.read_text()


def measure_fetch(function, context):
    """The calls of this rank, in order, and how its function ended.

    Each rank notes in the store where it is. So a download goes on as soon as the other ranks have stopped, and a
    barrier that a rank will not reach ends at once: no result depends on the speed of the machine.
    """
    node, local_rank = divmod(context.rank, PER_NODE)
    text = "first half, second half"
    calls, barrier, world_size = [], dist.barrier, context.world_size

    def note(event):
        context.store.set(f"{event} {context.rank}", "")

    def have_noted(*events):
        return {rank for rank in range(world_size) if any(context.store.check([f"{event} {rank}"]) for event in events)}

    def recorded_barrier(*args, **kwargs):
        event, give_up = f"barrier {calls.count('barrier')}", time.monotonic() + context.timeout
        calls.append("barrier")
        note(event)
        while True:
            ended = have_noted("end")  # asked first: a rank may come to the barrier and end between the two questions
            come = have_noted(event)
            if len(come) == world_size:
                return barrier(*args, **kwargs)
            if ended - come or time.monotonic() > give_up:
                raise NotMet
            time.sleep(0.05)

    def let_others_stop():
        """Wait until each rank downloads, is at the next barrier or has ended; for ranks that do none of it, 2 s."""
        events, give_up = ("download", f"barrier {calls.count('barrier')}", "end"), time.monotonic() + 2
        while len(have_noted(*events)) < world_size and time.monotonic() < give_up:
            time.sleep(0.05)

    def download(path):
        calls.append("download")
        note("download")
        let_others_stop()
        with Path(path).open("w") as out:
            print(text[:10], end="", file=out, flush=True)
            let_others_stop()
            print(text[10:], end="", file=out)

    context.gather("start", True)
    try:
        with patched(function, barrier=recorded_barrier):
            returned = function(local_rank, Path(context.folder, f"node{node}.txt"), download)
    except FileNotFoundError:
        end = "found no file"
    except NotMet:
        end = "waited in vain at the barrier"
    else:
        is_part = isinstance(returned, str) and text.startswith(returned)
        end = ("returned the whole file" if returned == text else "returned a part of it" if is_part
               else f"returned {returned!r}")
    finally:
        note("end")
    return {"calls": calls, "end": end}


@exercise_on_ranks(
    measure_fetch,
    solution=fetch,
    hint="Two steps. Who downloads: once a node, so which number is 0 there? Then the others must not read before it "
    "is done: dist.barrier() returns when every rank has called it.",
    mistakes={
        "All ranks download, at the same time: several processes write one file.": partial(fetch_with, downloads="all"),
        "The disk of node 1 stays empty: rank 0 runs on node 0.": partial(fetch_with, downloads="rank 0"),
        "Nobody waits for the rank that downloads.": partial(fetch_with, waits="none"),
        "Only the ranks that download call the barrier. It returns when every rank has called it.":
            partial(fetch_with, waits="downloader"),
        "The ranks that download do not call the barrier. It returns when every rank has called it.":
            partial(fetch_with, waits="others"),
        "The ranks wait before the download, and not after it.": waits_first,
        "A file may exist and not be whole. Wait until the rank that writes it has said so, at a barrier.":
            waits_for_the_name,
    },
    ranks=len(HOSTS) * PER_NODE,
)
def fetched(ranks):
    """One download a node, and every rank reads the whole file. Should a download fail, nobody waits for ever: the
    barrier ends with an error after the group's timeout. So a download that takes longer than the timeout ends the
    job, too: give the group more time than the slowest download."""
    downloads = [rank for rank, measured in enumerate(ranks) if "download" in measured["calls"]]
    right = list(range(0, len(ranks), PER_NODE))
    yield Case(downloads, right, f"{len(HOSTS)} nodes of {PER_NODE} processes: ranks {downloads} call "
                                 f"download(file). Ranks {right} should, one on each node.")
    ends = "; ".join(f"rank {rank} {measured['end']}" for rank, measured in enumerate(ranks))
    yield Case([[measured["end"], measured["calls"]] for measured in ranks],  # the calls tell mistakes apart
               [["returned the whole file", measured["calls"]] for measured in ranks],
               f"Every rank should return the whole file. With your answer {ends}.")
