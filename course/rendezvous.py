"""Where the processes of a job stand, what each of them wrote down, and who connected to whom. Notebook 03 is about it.

It imports no torch: a rank that only says hello starts in a tenth of a second.
"""

import contextlib
import json
import random
import socket
from pathlib import Path

FILE = "the file"  # stands among the processes of a meeting
# Of the variables that a launcher sets
MEANING = {
    "RANK": "rank: number in the job", "LOCAL_RANK": "local rank: number on this node",
    "WORLD_SIZE": "processes in the job", "LOCAL_WORLD_SIZE": "processes on this node",
    "GROUP_RANK": "group rank: number of the node", "GROUP_WORLD_SIZE": "nodes",
    "MASTER_ADDR": "where all ranks meet: the host …", "MASTER_PORT": "… and the port"}


def placements(nodes: int, per_node: int) -> list[dict[str, int]]:
    """{rank, local_rank, group_rank} of each process, when every node has as many: what torchrun gives."""
    return [{"rank": node * per_node + local_rank, "local_rank": local_rank, "group_rank": node}
            for node in range(nodes) for local_rank in range(per_node)]


def free_port() -> int:
    """A TCP port that nobody listens on at the moment, and that no process gets which asks the system for any port:
    Linux gives those from 32768 on, macOS from 49152. OSError where a hundred are taken."""
    for port in random.SystemRandom().sample(range(20_000, 32_768), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError("no free port was found between 20000 and 32767")


def rank_file(folder: str | Path, rank: int) -> Path:
    """The file into which this rank writes its results."""
    return Path(folder, f"rank-{rank}.json")


def read(folder: str | Path) -> list[dict]:
    """The results of each rank of the last run, rank 0 first. FileNotFoundError if a rank has not come to its end."""
    first = json.loads(rank_file(folder, 0).read_text())
    return [first] + [json.loads(rank_file(folder, rank).read_text()) for rank in range(1, first["world_size"])]


def links(processes: dict[str, dict], store_port: int | None = None) -> list[dict[str, str]]:
    """Who connected to whom: {client, server, kind} for {process: its sockets}, all on one machine. `kind` is "store"
    where the server's port is the one where the ranks meet, else "gloo"."""
    owner = {port: name for name, sockets in processes.items() for port in sockets["listens"]}
    return [{"client": name, "server": owner[theirs], "kind": "store" if theirs == store_port else "gloo"}
            for name, sockets in processes.items() for _, theirs in sockets["connections"] if theirs in owner]


def meetings(folder: str | Path) -> dict[str, tuple[list[str], list[dict]]]:
    """{url: (names, links)} of what ranks_meet.py's `meet` left there: who met at the url, and who connected to whom.

    Where all met in a file it is one of the names, with a link from each rank: the ranks have opened it by that url.
    """
    meetings_at, of_ranks = {}, read(folder)
    for url, met in of_ranks[0]["meet"].items():
        seen = {name: sockets for rank in of_ranks for name, sockets in rank["meet"][url]["processes"].items()}
        in_file = [{"client": name, "server": FILE, "kind": "store"} for name in seen if url.startswith("file:")]
        meetings_at[url] = [*seen, *[FILE][:len(in_file)]], links(seen, met["port"]) + in_file
    return meetings_at


def listener(links: list[dict[str, str]]) -> str:
    """The process that listens where the ranks meet, or "nobody"."""
    return next((link["server"] for link in links if link["kind"] == "store" and link["server"] != FILE), "nobody")
