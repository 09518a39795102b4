"""Exercises of notebook 03. The last one runs on ranks: course/checks/on_ranks.py says how."""

import inspect
from datetime import timedelta
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist

import utils
from course.checks import Wrong, because, exercise
from course.checks.cases import exactly, misses
from course.checks.on_ranks import Answers, first_line
from course.rendezvous import placements

SHAPES = [(2, 4), (1, 8), (3, 1), (4, 3)]  # nodes, processes a node

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
    cases = [(rank, per_node) for nodes, per_node in SHAPES for rank in range(nodes * per_node)]
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


def my_rank(group_rank, local_rank, per_node):
    return group_rank * per_node + local_rank


@exercise(
    solution=my_rank,
    hint="How many processes stand on the nodes before this one?",
    mistakes={"dealt like cards": lambda group_rank, local_rank, per_node: local_rank * 2 + group_rank,
              "the local rank": lambda group_rank, local_rank, per_node: local_rank,
              "added": lambda group_rank, local_rank, per_node: group_rank + local_rank},
)
def rank_of(attempt):
    """All ranks of all shapes tried come out, each once: from 0 to world size - 1."""
    cases = [(node, local_rank, per_node) for nodes, per_node in SHAPES
             for node in range(nodes) for local_rank in range(per_node)]
    for miss in misses(rank_of, attempt, cases, read=exactly):
        node, local_rank, per_node = miss.asked
        said = (f"Local rank {local_rank} on node {node}, {per_node} processes a node: you gave {miss.got}, it is rank "
                f"{miss.right}.")
        miss.explain(said, {
            "the local rank": "That is the local rank. Each node has one of that number: they would all be the same "
            "rank.",
            "added": f"You added the two. But before node {node} stand {node} × {per_node} processes, not {node}.",
            "dealt like cards": "You dealt the ranks like cards. torchrun fills a node, then the next.",
        })


# Exercise 2: who does it?
def my_turn(job, rank, local_rank):
    if job == "train":
        return True
    if job == "download to the node's own disk":
        return local_rank == 0
    return rank == 0


JOBS = {"train": {0, 1, 2, 3, 4, 5}, "print the loss": {0}, "write the checkpoint to the shared disk": {0},
        "download to the node's own disk": {0, 3}}  # the ranks that do it, on 2 nodes of 3 processes


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
    they read what it wrote."""
    for job, expected in JOBS.items():
        got = {process["rank"] for process in placements(2, 3)
               if attempt(job, process["rank"], process["local_rank"])}
        if got != expected:
            raise because(
                f"2 nodes of 3 processes, {job!r}: with your answer ranks {sorted(got)} do it.",
                (job == "train", "All ranks train: one that does not come to the all-reduce leaves the others "
                 "waiting."),
                (got == set(range(6)), "All of them, at once. Lines come six times, and a file that several write can "
                 "come out torn."),
                (expected == {0} and got == {0, 3}, "Each node has a local rank 0, so it happens twice. Once in the "
                 "whole job is rank 0."),
                (expected == {0, 3} and got == {0}, "The disk of node 1 stays empty: rank 0 runs on node 0. Each node "
                 "needs one that does it."),
                (True, f"It should be ranks {sorted(expected)}."))


# Exercise 3: a pretend launcher
def my_environment(group_rank, local_rank, hosts, per_node, port):
    return {
        "RANK": str(group_rank * per_node + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(len(hosts) * per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": hosts[0],  # rank 0 runs on the first node
        "MASTER_PORT": str(port),
    }


def otherwise(change):
    """my_environment, but for what `change` of the same arguments gives."""
    return lambda *place: my_environment(*place) | change(*place)


@exercise(
    solution=my_environment,
    hint="Six texts. RANK is yours from exercise 1; all ranks go to one address and one port, where rank 0 is: the "
    "first host. An environment variable is text: str(number).",
    mistakes={
        "the address of its own node": otherwise(lambda node, local, hosts, *_: {"MASTER_ADDR": hosts[node]}),
        "a port for each rank": otherwise(
            lambda node, local, hosts, per_node, port: {"MASTER_PORT": str(port + node * per_node + local)}),
        "numbers, not text": lambda *place: {
            name: int(value) if value.isdigit() else value for name, value in my_environment(*place).items()},
        "the local rank as rank": otherwise(lambda node, local, *_: {"RANK": str(local)}),
        "the world of one node": otherwise(lambda node, local, hosts, per_node, port: {"WORLD_SIZE": str(per_node)})},
)
def environment(attempt):
    """main.py's own reader (utils.find_placement) sees the right rank, local rank and world size in each process, and
    all of them go to one meeting point. A launcher does little more: it sets these and starts the processes."""
    for nodes, per_node in SHAPES:
        hosts, port = [f"node{number}" for number in range(nodes)], 29400
        for process in placements(nodes, per_node):
            rank, local_rank, node = process["rank"], process["local_rank"], process["group_rank"]
            got = attempt(node, local_rank, hosts, per_node, port)
            case = f"Local rank {local_rank} on {hosts[node]}, {nodes} nodes of {per_node}"
            if not isinstance(got, dict):
                raise Wrong(f"{case}: you gave {got!r}. Return a dict, {{\"RANK\": …}}.")
            if missing := sorted(my_environment(node, local_rank, hosts, per_node, port).keys() - got):
                raise Wrong(f"{case}: {', '.join(missing)} is missing.")
            for name, value in got.items():
                if not isinstance(value, str):
                    raise Wrong(f"{case}: {name} is {value!r}, of type {type(value).__name__}. The environment of a "
                                "process holds text only: os.environ would refuse it.")
            seen = utils.find_placement("cpu", "gloo", got)
            for name, value, expected, why in (
                ("RANK", seen.rank, rank, "Each process of the job needs a number of its own. With the same numbers on "
                 "every node, two ranks 0 wait for a rank that never comes."),
                ("LOCAL_RANK", seen.local_rank, local_rank, ""),
                ("WORLD_SIZE", seen.world_size, nodes * per_node, "The group is complete when the processes of all "
                 "nodes have come, not those of one."),
                ("LOCAL_WORLD_SIZE", seen.local_world_size, per_node, ""),
                ("MASTER_ADDR", got["MASTER_ADDR"], hosts[0], "Nobody listens there: the ranks meet where rank 0 is."),
                ("MASTER_PORT", got["MASTER_PORT"], str(port), "Only one process listens, and all others have to come "
                 "to its port."),
            ):
                if value != expected:
                    raise Wrong(f"{case}: {name} is {value}, but it should be {expected}. {why}".strip())


# Exercise 4: join a group, on ranks
def join(rank, world_size, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world_size,
                            timeout=timedelta(seconds=30))


def join_otherwise(other, rank, world_size, file):
    """`join` with other arguments; None: without this one."""
    asked = {"init_method": f"file://{file}", "rank": rank, "world_size": world_size, "timeout": timedelta(seconds=30)}
    dist.init_process_group("gloo", **{name: value for name, value in (asked | other).items() if value is not None})


def join_elsewhere(rank, world_size, file):
    join(rank, world_size, f"{file}-{rank}")


def measure_join(function, here):
    """What the function asks of init_process_group, and what comes of it.

    Whatever timeout it asks for, a rank waits for the others here.timeout seconds at most.
    """
    found, real = {"asked": None}, dist.init_process_group

    def noted(*args, **kwargs):
        asked = inspect.signature(real).bind(*args, **kwargs)
        timeout = asked.arguments.get("timeout")
        found["asked"] = {name: asked.arguments.get(name) for name in ("init_method", "rank", "world_size")}
        found["asked"]["timeout"] = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        if timeout is None or isinstance(timeout, timedelta):
            asked.arguments["timeout"] = timedelta(seconds=here.timeout)
        return real(*asked.args, **asked.kwargs)

    try:
        with mock.patch.object(dist, "init_process_group", noted):
            function(here.rank, here.world_size, f"{here.folder}/meeting")
        if dist.is_initialized():
            total = torch.tensor([here.rank + 1])
            dist.all_reduce(total)
            found["sum"] = total.item()
    except NotImplementedError:
        raise
    except Exception as error:  # what it asked for tells more
        found["error"] = first_line(error)
    return found


answers = Answers({"join": measure_join}, group=False)


@exercise(
    solution=join,
    hint='dist.init_process_group("gloo", init_method=..., rank=..., world_size=..., timeout=...). The method is '
    'f"file://{file}"; a timeout is a timedelta(seconds=...).',
    mistakes={"all are rank 0": partial(join_otherwise, {"rank": 0}),
              "a group of one": partial(join_otherwise, {"rank": 0, "world_size": 1}),
              "no timeout": partial(join_otherwise, {"timeout": None}),
              "a file for each rank": join_elsewhere,
              "a timeout in seconds": partial(join_otherwise, {"timeout": 30}),
              "no meeting point": partial(join_otherwise, dict.fromkeys(["init_method", "rank", "world_size"])),
              "no rank": partial(join_otherwise, {"rank": None, "world_size": None}),
              "30 days": partial(join_otherwise, {"timeout": timedelta(30)})},
)
def joined(attempt):
    """All ranks met in the file and are one group: their numbers added up to the sum over all ranks. No port and no
    address was needed, and who waits in vain says so soon."""
    found = answers.findings("join", attempt)
    size, error = len(found), next((rank["error"] for rank in found if "error" in rank), "")
    if any(rank["asked"] is None for rank in found):
        raise Wrong(f"It raised {error}" if error else "Your function did not call dist.init_process_group.")
    methods, said, sizes, timeouts = ([rank["asked"][name] for rank in found]
                                      for name in ("init_method", "rank", "world_size", "timeout"))
    if not all(str(method).startswith("file://") for method in methods):
        raise Wrong(f"The ranks were to meet in the file; init_method was {methods[0]!r}. (Without one it is env://, "
                    "where torchrun listens.)")
    if {None, -1} & {*said, *sizes}:
        raise Wrong(f"A file does not tell a process who it is: give rank and world_size, too ({error}).")
    if set(sizes) != {size}:
        raise Wrong(f"world_size was {', '.join(map(str, sorted(set(sizes))))}, and {size} processes ran. Each made a "
                    "group of its own: no error, no waiting, and no exchange. Each would train a model of its own.")
    if len(set(said)) < size:
        raise Wrong(f"The processes called themselves rank {' and '.join(map(str, said))}. Each needs a number of its "
                    f"own: rank {size - 1} never came, and the others waited for it ({error}).")
    if len(set(methods)) > 1:
        raise Wrong(f"Each rank went to another file and waited there for the others, who did not come ({error}). The "
                    "meeting point must be the same on all ranks.")
    if None in timeouts:
        minutes = dist.distributed_c10d.default_pg_timeout.total_seconds() / 60
        raise Wrong(f"It works, but without a timeout. If a rank does not come, the others wait {minutes:g} minutes "
                    "before they say so.")
    if error:
        raise Wrong(f"init_process_group said {error}")
    if set(timeouts) != {30}:
        days = " timedelta(30) is 30 days: write timedelta(seconds=30)." if max(timeouts) == 30 * 86_400 else ""
        raise Wrong(f"It works, but the timeout is {max(timeouts):,.0f} s, and it should be 30.{days}")
    if any(rank.get("sum") != size * (size + 1) // 2 for rank in found):
        raise Wrong(f"The ranks added their numbers up and got {[rank.get('sum') for rank in found]}: not one group.")
