"""What the processes of notebook 03 do: say who they are, or meet and look who has connected to whom.

Four ranks say who they are     torchrun --nproc_per_node=4 lessons/l03_processes_and_ranks/ranks_meet.py
Who listens, who connects       torchrun --nproc_per_node=3 lessons/l03_processes_and_ranks/ranks_meet.py \\
    --meet env:// --out FOLDER

Each rank writes a file of its own into --out, rank-0.json and so on; `read` and `meetings` give these back. Only ranks
that meet import torch: the others start in a tenth of a second. It runs on CPUs.
"""

import json
import os
from pathlib import Path

from course import rank_program
from course.rendezvous import MEANING
from trainer.files import check_output
from trainer.options import nonempty_path

FILE = "the file"  # in which processes meet: its name among theirs

# -------------------------------------------------------------------------------------------- what a rank does


def identity() -> dict[str, int]:
    """Who this process is, as its launcher says. ValueError, one line, where the launcher's variables are unusable."""
    try:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return {"rank": rank, "local_rank": int(os.environ.get("LOCAL_RANK", rank)), "world_size": world_size,
                "group_rank": int(os.environ.get("GROUP_RANK", 0)), "pid": os.getpid()}
    except KeyError as missing:
        raise ValueError(f"{missing.args[0]} is not set: start with torchrun") from None
    except ValueError as error:
        raise ValueError(f"the launcher's environment is not usable ({error}): start with torchrun") from None


def meet(rank: int, url: str, timeout: float) -> dict:
    """The port of the meeting, and {process: its TCP sockets}, once all ranks have met at `url`.

    Of this rank; rank 0 also looks at the torchrun that started it.
    """
    import psutil
    import torch.distributed as dist

    from trainer import launch

    if dist.is_initialized():  # at the url before
        dist.destroy_process_group()
    launch.init_distributed_mode(launch.find_placement("cpu", "gloo"), url, timeout)
    dist.barrier()  # all are connected
    port = {"env": os.environ["MASTER_PORT"], "tcp": url.rpartition(":")[2], "file": 0}[url.partition(":")[0]]
    processes = {f"rank {rank}": sockets(psutil.Process())}
    if rank == 0 and "TORCHELASTIC_RUN_ID" in os.environ:
        processes["torchrun"] = sockets(psutil.Process().parent())
    dist.barrier()  # all have looked
    return {"port": int(port), "processes": processes}


def sockets(process) -> dict[str, list]:
    """The TCP ports that a process listens on, and its connections, (own port, other port) each."""
    look = getattr(process, "net_connections", None) or process.connections  # psutil < 6 has another name
    tcp = look(kind="tcp")
    return {"listens": [socket.laddr.port for socket in tcp if socket.status == "LISTEN"],
            "connections": [(socket.laddr.port, socket.raddr.port) for socket in tcp if socket.status == "ESTABLISHED"]}


def main():
    parser = rank_program.parser(__doc__, timeout=20)
    parser.add_argument("--meet", nargs="+", metavar="URL", default=[],
                        help="where the ranks meet, one after the other: env://, tcp://host:port or file:///path")
    parser.add_argument("--out", type=nonempty_path, help="each rank writes a file into this folder, rank-0.json say")
    args = parser.parse_args()
    with parser.one_line():
        me = identity()
        if any(not url.startswith(("env://", "tcp://", "file:///")) for url in args.meet):
            raise ValueError(f"--meet {' '.join(args.meet)}: each begins with env://, tcp:// or file:///")
        if args.out:
            check_output("--out", rank_file(args.out, me["rank"]))
            rank_file(args.out, me["rank"]).unlink(missing_ok=True)  # an earlier run's result is not this one's
    if not args.meet:  # in one write: another rank must not print within the line
        print(f"rank {me['rank']} of {me['world_size']}: local rank {me['local_rank']} on node {me['group_rank']}, "
              f"process {me['pid']}\n", end="", flush=True)
    variables = {name: os.environ[name] for name in MEANING if name in os.environ}
    meetings = {url: meet(me["rank"], url, args.timeout) for url in args.meet}
    if args.out:
        rank_program.write_json(rank_file(args.out, me["rank"]), me | {"variables": variables, "meetings": meetings})
    if args.meet:
        from course import shortcuts

        shortcuts.exit_now()


# -------------------------------------------------------------------------------------------- what the ranks wrote


def rank_file(folder: Path, rank: int) -> Path:
    return Path(folder, f"rank-{rank}.json")


def read(folder: Path) -> list[dict]:
    """What each rank of the last run wrote there, rank 0 first. FileNotFoundError if a rank did not come to its end."""
    first = json.loads(rank_file(folder, 0).read_text())
    return [first] + [json.loads(rank_file(folder, rank).read_text()) for rank in range(1, first["world_size"])]


def links(processes: dict[str, dict], store_port: int) -> list[dict]:
    """Who connected to whom: {client, server, kind} for {process: its sockets}, all on one machine.

    `kind` is "store" where the server's port is the one where the ranks meet, else "gloo".
    """
    owner = {port: name for name, of_process in processes.items() for port in of_process["listens"]}
    return [{"client": name, "server": owner[theirs], "kind": "store" if theirs == store_port else "gloo"}
            for name, of_process in processes.items() for _, theirs in of_process["connections"] if theirs in owner]


def meetings(folder: Path) -> dict[str, tuple[list[str], list[dict]]]:
    """{url: (names, links)} of the last run with --meet: who met at the url, and who connected to whom.

    A file in which all met is one of the names, with a link from each rank: the ranks have opened it by that url.
    """
    ranks, result = read(folder), {}
    for url, first in ranks[0]["meetings"].items():
        processes = {name: sockets for rank in ranks for name, sockets in rank["meetings"][url]["processes"].items()}
        names, connected = list(processes), links(processes, first["port"])
        if url.startswith("file:"):
            connected += [{"client": name, "server": FILE, "kind": "store"} for name in processes]
            names.append(FILE)
        result[url] = names, connected
    return result


def listener(links: list[dict]) -> str:
    """Who listens where the ranks meet, or "nobody"."""
    return next((link["server"] for link in links if link["kind"] == "store" and link["server"] != FILE), "nobody")


if __name__ == "__main__":
    main()
