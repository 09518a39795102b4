"""Exercises of notebook 03. The last two run on ranks: course/on_ranks.py says how."""

import inspect
import os
import re
import time
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from unittest import mock

import torch.distributed as dist

from course.cases import drawn, drawn_one, misses
from course.exercise import Wrong, because, exercise
from course.on_ranks import Answers, first_line
from course.rendezvous import free_port, placements

SHAPES = [(2, 4), (1, 8), (3, 1), (4, 3)]  # nodes, processes a node
PLACES = (2, 2)  # nodes, processes a node: of the exercises on ranks, as it were


def launched():
    """(hosts, processes a node) of the launch by hand."""
    per_node = drawn_one(PLACES, lambda random: (2, random.choice((1, 3))))[1]
    return [drawn_one("localhost", lambda random: "127.0.0.1"), "node1.invalid"], per_node


def downloading():
    """(nodes, processes a node) of the download."""
    return drawn_one(PLACES, lambda random: random.choice(((2, 3), (3, 2))))


# Exercise 1: rank -> (node, local rank), and back
def my_place(rank, per_node):
    return divmod(rank, per_node)


def pair(answer):
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Wrong(f"You gave {answer!r}. Return two numbers: group_rank, local_rank.")
    return tuple(answer)


@exercise(
    solution=my_place,
    hint="The nodes are filled one after the other, as hotel floors are with rooms. Of rank // per_node and "
    "rank % per_node, one is the floor and one is the room.",
    mistakes={"swapped": lambda rank, per_node: (rank % per_node, rank // per_node),
              "dealt like cards": lambda rank, per_node: (rank % 2, rank // 2),
              "counted from one": lambda rank, per_node: (rank // per_node + 1, rank % per_node + 1),
              "only the local rank": lambda rank, per_node: rank % per_node},
)
def place(attempt):
    """Group rank and local rank follow from the rank, as long as every node has as many processes. So a program can
    ask for LOCAL_RANK instead of computing it: then it is also right on unequal nodes."""
    shapes = drawn(SHAPES, lambda random: (random.randint(2, 5), random.choice((5, 6, 7, 9))))
    cases = [(rank, per_node) for nodes, per_node in shapes for rank in range(nodes * per_node)]
    for miss in misses(place, attempt, reversed(cases), read=pair):  # the last rank tells the mistakes apart
        (rank, per_node), (node, local_rank) = miss.asked, miss.right
        said = (f"Rank {rank} with {per_node} processes a node: you gave {miss.got}; it is local rank {local_rank} on "
                f"node {node}, so {miss.right}.")
        miss.explain(said, {
            "swapped": "The two are swapped: the node comes first.",
            "counted from one": "Ranks, local ranks and nodes are counted from 0.",
            "dealt like cards": "You dealt the ranks like cards, one to each node in turn. torchrun fills a node "
            "before it goes on to the next.",
        })


# Exercise 2: who does it?
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
    mistakes={"rank 0 downloads": lambda job, rank, local_rank: job == "train" or rank == 0,
              "local rank 0 prints": lambda job, rank, local_rank: job == "train" or local_rank == 0,
              "everyone": lambda job, rank, local_rank: True,
              "rank 0 trains alone": lambda job, rank, local_rank: rank == 0},
)
def turn(attempt):
    """Once in the job: rank 0. Once on each node: local rank 0. And the others must wait for it, at a barrier, before
    they read what it wrote. (Where ranks share one model's weights, as in lesson 13, all write the checkpoint.)"""
    shapes = drawn([(2, 3)], lambda random: (2, random.choice((2, 4, 5, 8))))
    for (nodes, per_node), (job, where) in product(shapes, JOBS.items()):
        everyone, firsts = set(range(nodes * per_node)), set(range(0, nodes * per_node, per_node))
        expected = {"each process": everyone, "job": {0}, "node": firsts}[where]
        got = {process["rank"] for process in placements(nodes, per_node)
               if attempt(job, process["rank"], process["local_rank"])}
        if got != expected:
            raise because(
                f"{nodes} nodes of {per_node} processes, {job!r}: with your answer ranks {sorted(got)} do it.",
                (job == "train", "All ranks train: one that does not come to the all-reduce leaves the others "
                 "waiting."),
                (got == everyone, "All of them, at once. Lines come from each, and a file that several write can "
                 "come out torn."),
                (where == "job" and got == firsts, "Each node has a local rank 0, so it happens twice. Once in the "
                 "whole job is rank 0."),
                (where == "node" and got == {0}, "The disk of node 1 stays empty: rank 0 runs on node 0. Each node "
                 "needs one that does it."),
                (True, f"It should be ranks {sorted(expected)}."))


# Exercise 3: what a launcher writes, and the group, on ranks
def join(node, local_rank, hosts, per_node, port):
    os.environ.update(RANK=str(node * per_node + local_rank), LOCAL_RANK=str(local_rank),
                      WORLD_SIZE=str(len(hosts) * per_node), MASTER_ADDR=hosts[0], MASTER_PORT=str(port))
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    return dist.get_rank()


def join_otherwise(change, timeout, node, local_rank, hosts, per_node, port):
    """`join`, but for what change(node, local_rank, hosts, per_node, port) says of the variables, and the timeout."""
    os.environ.update(RANK=str(node * per_node + local_rank), LOCAL_RANK=str(local_rank),
                      WORLD_SIZE=str(len(hosts) * per_node), MASTER_ADDR=hosts[0], MASTER_PORT=str(port))
    os.environ.update(change(node, local_rank, hosts, per_node, port))
    dist.init_process_group("gloo", timeout=timeout)
    return dist.get_rank()


def as_it_is(*place):
    return {}


def rank_on_node(node, local_rank, *_):
    return {"RANK": str(local_rank)}


def world_of_node(node, local_rank, hosts, per_node, port):
    return {"WORLD_SIZE": str(per_node)}


def own_host(node, local_rank, hosts, *_):
    return {"MASTER_ADDR": hosts[node]}


def own_port(node, local_rank, hosts, per_node, port):
    return {"MASTER_PORT": str(port + node * per_node + local_rank)}


def numbers(node, local_rank, hosts, per_node, port):
    return {"RANK": node * per_node + local_rank}


def launched_and_alone(node, local_rank, hosts, per_node, port):
    return node * per_node + local_rank


IN_TIME = timedelta(seconds=30)
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def misplaced(asked, port):
    """What is wrong with what the ranks are told when they call init_process_group, a dict each; None: nothing."""
    whys = {"RANK": "Each process of the job needs a number of its own. With the same numbers on every node, two "
                    "processes are rank 0, and all wait for ranks that never come.",
            "LOCAL_RANK": "It counts the processes of one node.",
            "WORLD_SIZE": "The group is complete when the processes of all nodes have come, not those of one.",
            "MASTER_ADDR": "Nobody listens there: all meet where rank 0 is, on the first host.",
            "MASTER_PORT": "Only one process listens, and all others come to its port."}
    hosts, per_node = launched()
    for rank, told in enumerate(asked):
        node, local_rank = divmod(rank, per_node)
        place = f"Local rank {local_rank} on node {node}"
        if told is None:
            return f"{place} does not call dist.init_process_group."
        right = dict(zip(whys, map(str, (rank, local_rank, len(asked), hosts[0], port)), strict=True))
        for name, why in whys.items():
            if told[name] is None:
                return f"{place}: {name} is not set when init_process_group is called."
            if told[name] != right[name]:
                return f"{place}: {name} is {told[name]}, but it should be {right[name]}. {why}"
        timeout = told["timeout"]
        if timeout is None:
            minutes = dist.distributed_c10d.default_pg_timeout.total_seconds() / 60
            return ("The variables are right. But there is no timeout: if a rank does not come, the others wait "
                    f"{minutes:g} minutes before they say so.")
        if not isinstance(timeout, float):
            return f"The timeout is {timeout}, and must be a timedelta: write timedelta(seconds=30)."
        if timeout != 30:
            days = " timedelta(30) is 30 days: write timedelta(seconds=30)." if timeout == 30 * 86_400 else ""
            return f"The variables are right. But the timeout is {timeout:,.0f} s, and it should be 30.{days}"
    return None


def measure_join(function, here):
    """What stood in the environment when it called init_process_group, and what came of it.

    The ranks meet only where nothing is wrong with that: else they would wait, and torch would print pages.
    """
    for name in VARIABLES:
        os.environ.pop(name, None)  # of a launcher of this process
    port = here.gather("port", free_port() if here.rank == 0 else None)[0]
    found, real, (hosts, per_node) = {"got": None, "size": None}, dist.init_process_group, launched()

    def noted(*args, **kwargs):
        arguments = inspect.signature(real).bind(*args, **kwargs)
        timeout = arguments.arguments.get("timeout")
        told = {name: os.environ.get(name) for name in VARIABLES}
        told["timeout"] = (None if timeout is None else timeout.total_seconds() if isinstance(timeout, timedelta)
                           else repr(timeout))
        found["misplaced"] = misplaced(here.gather("asked", told), port)
        if not found["misplaced"]:
            arguments.arguments["timeout"] = timedelta(seconds=here.timeout)
            real(*arguments.args, **arguments.kwargs)

    try:
        with mock.patch.object(dist, "init_process_group", noted):
            found["got"] = function(*divmod(here.rank, per_node), hosts, per_node, port)
        found["size"] = dist.get_world_size() if dist.is_initialized() else None
    except NotImplementedError:
        raise
    except Exception as error:  # what it asked for tells more
        found["error"] = first_line(error)
    if "misplaced" not in found:  # it never asked
        found["misplaced"] = misplaced(here.gather("asked", None), port)
    return found


alone = Answers({"join": measure_join}, group=False)


@exercise(
    solution=join,
    hint="Five variables, all of them text: str(number). Before a node stand node * per_node processes. Rank 0 runs on "
    "the first host, and there all meet. Then dist.init_process_group(\"gloo\", timeout=...) finds the rest in them.",
    mistakes={"the local rank as rank": partial(join_otherwise, rank_on_node, IN_TIME),
              "the world of one node": partial(join_otherwise, world_of_node, IN_TIME),
              "each node its own address": partial(join_otherwise, own_host, IN_TIME),
              "a port for each rank": partial(join_otherwise, own_port, IN_TIME),
              "numbers, not text": partial(join_otherwise, numbers, IN_TIME),
              "no timeout": partial(join_otherwise, as_it_is, None),
              "a timeout in seconds": partial(join_otherwise, as_it_is, 30),
              "30 days": partial(join_otherwise, as_it_is, timedelta(30)),
              "no group": launched_and_alone},
)
def joined(attempt):
    """Processes that no launcher had started are one group, and each says who it is. A launcher does little more
    than this: it sets these variables, then starts the processes."""
    hosts, per_node = launched()
    found = alone.findings("join", attempt, len(hosts) * per_node)
    errors, wrong = [rank["error"] for rank in found if "error" in rank], found[0]["misplaced"]
    if wrong and not ("does not call" in wrong and errors):
        raise Wrong(wrong)
    if errors:
        raise Wrong(f"An environment variable is text: str(number). os.environ says {errors[0]}."
                    if "str expected" in errors[0] else f"It raised {errors[0]}.")
    for rank, one in enumerate(found):
        if (one["size"], one["got"]) != (len(found), rank):
            raise Wrong(f"They met. But rank {rank} is in a group of {one['size']}, and your function returned "
                        f"{one['got']!r}. It should be {len(found)} and {rank}, from dist.get_rank().")


# Exercise 4: one on each node downloads, the others wait, on ranks
def fetch(local_rank, file, download):
    if local_rank == 0:
        download(file)
    dist.barrier()
    return file.read_text()


def all_download(local_rank, file, download):
    download(file)
    dist.barrier()
    return file.read_text()


def rank_0_downloads(local_rank, file, download):
    if dist.get_rank() == 0:
        download(file)
    dist.barrier()
    return file.read_text()


def nobody_waits(local_rank, file, download):
    if local_rank == 0:
        download(file)
    return file.read_text()


def one_waits(local_rank, file, download):
    if local_rank == 0:
        download(file)
        dist.barrier()
    return file.read_text()


def others_wait(local_rank, file, download):
    if local_rank == 0:
        download(file)
    else:
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


def measure_fetch(function, here):
    """What this rank did, in order, what its function returned, and what stands in the file in the end."""
    node, local_rank = divmod(here.rank, downloading()[1])
    file, did = Path(here.folder, f"node{node}.txt"), []
    text = drawn_one("first half, second half", lambda random: random.randbytes(12).hex())
    real, found = dist.barrier, {"did": did, "got": None}

    def barrier(*args, **kwargs):
        did.append("barrier")
        return real(*args, **kwargs)

    def download(path):
        did.append("download")
        time.sleep(0.6)
        with Path(path).open("w") as out:
            for part in (text[:10], text[10:]):
                print(part, end="", file=out, flush=True)
                time.sleep(0.3)

    here.gather("start", True)
    try:
        with mock.patch.object(dist, "barrier", barrier):
            found["got"] = function(local_rank, file, download)
    except NotImplementedError:
        raise
    except Exception as error:  # what it did tells more
        found["error"] = first_line(error)
    here.gather("done", True)
    return found | {"right": text, "there": file.exists()}


together = Answers({"fetch": measure_fetch})


@exercise(
    solution=fetch,
    hint="Two steps. Who downloads: once a node, so which number is 0 there? Then the others must not read before it "
    "is done: dist.barrier() returns when every rank has called it.",
    mistakes={"all download": all_download, "rank 0 downloads": rank_0_downloads, "nobody waits": nobody_waits,
              "the one that downloads waits": one_waits, "the others wait": others_wait,
              "first wait, then download": waits_first, "until the name is there": waits_for_the_name},
)
def fetched(attempt):
    """One download a node, and every rank reads the whole file. Should a download fail, nobody waits for ever: the
    barrier ends with an error after the group's timeout. So a download that takes longer than the timeout ends the
    job, too: give the group more time than the slowest download."""
    nodes, per_node = downloading()
    found = together.findings("fetch", attempt, nodes * per_node)
    did, errors = [rank["did"] for rank in found], [rank.get("error", "") for rank in found]
    downloads = [rank for rank, those in enumerate(did) if "download" in those]
    if not any(rank["there"] for rank in found):
        raise because("No rank has called download(file).", (any(errors), f"It raised {max(errors)}."))
    if downloads != (right := list(range(0, len(found), per_node))):
        raise because(
            f"{nodes} nodes of {per_node} processes: ranks {downloads} download.",
            (len(downloads) == len(found), "All of them, at the same time: several processes write one file."),
            (downloads == [0], "The disk of node 1 stays empty: rank 0 runs on node 0."),
            (True, f"It should be once a node: ranks {right}."))
    early = [rank for rank, one in enumerate(found) if "FileNotFound" in errors[rank]
             or one["got"] is not None and str(one["got"]) in one["right"][:10]]
    waited = re.search("timed out|closed", max(errors), re.IGNORECASE)
    if early or waited:
        calls = [those.count("barrier") for those in did]
        raise because(
            f"Ranks {early} read before the file was whole." if early else "Ranks waited in vain at the barrier.",
            (not any(calls) and not any(errors), "A file can be there and not be whole: that its name exists "
             "says nothing. Wait until the one that writes it has said so, at a barrier."),
            (not any(calls), "Nobody waits for the one that downloads."),
            (len(set(calls)) > 1, f"The ranks called barrier {calls} times. It returns when every rank has called it: "
             "so all must, not some of them."),
            (did[0][:1] == ["barrier"], "They did wait: before the download, and not after it."))
    if any(errors):
        raise Wrong(f"It raised {max(errors)}.")
    if any(one["got"] != one["right"] for one in found):
        raise Wrong(f"Each rank should return what stands in the file, {found[0]['right']!r}; rank 1 returned "
                    f"{found[1]['got']!r}.")
