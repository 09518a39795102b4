"""What the processes of notebooks 03 and 10 do: say who they are, all talk at once, meet.

Four ranks say who they are     torchrun --nproc_per_node=4 lessons/l03_processes_and_ranks/ranks_meet.py --step hello
All print, at the same moments  torchrun --nproc_per_node=4 lessons/l03_processes_and_ranks/ranks_meet.py --step chatter
Who listens, who connects       torchrun --nproc_per_node=3 lessons/l03_processes_and_ranks/ranks_meet.py --step \\
    meet --out FOLDER

Each rank writes a file of its own, --out/rank-0.json and so on; course/rendezvous.py reads them. What needs no process
group does not import torch: such a rank starts in a tenth of a second. It runs on CPUs.
"""

import faulthandler
import os
import sys
import time

from course import rank_program
from course.rendezvous import rank_file
from files import check_output
from options import nonempty_path, positive

# set by torchrun for each rank
VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "MASTER_ADDR",
             "MASTER_PORT")

# -------------------------------------------------------------------------------------------- who a process is


def identity():
    """Who this process is, as its launcher says. ValueError, one line, where none has said anything usable."""
    try:
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return {"rank": rank, "local_rank": int(os.environ.get("LOCAL_RANK", rank)), "world_size": world_size,
                "group_rank": int(os.environ.get("GROUP_RANK", 0)), "pid": os.getpid()}
    except KeyError as missing:
        raise ValueError(f"{missing.args[0]} is not set: start with torchrun") from None
    except ValueError as error:
        raise ValueError(f"the launcher's environment is not usable ({error}): start with torchrun") from None


def hello(me, args):
    print(f"rank {me['rank']} of {me['world_size']}: local rank {me['local_rank']} on node {me['group_rank']}, "
          f"process {me['pid']}\n", end="", flush=True)
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def chatter(me, args):
    """--lines lines with print, then as many with one write each. DDP ends a step on all ranks at one moment. So do
    these ranks, by the clock: they begin together at an even second, and a step takes 20 ms."""
    time.sleep(2 - time.time() % 2)
    for name, say in (("print", print), ("write", lambda line: sys.stdout.write(line + "\n"))):
        for number in range(args.lines):
            time.sleep(0.02 - time.time() % 0.02)
            say(f"{name}: rank {me['rank']}, step {number}")
    sys.stdout.flush()


# -------------------------------------------------------------------------------------------- in a process group


def meet(me, args):
    """For each --url: the TCP sockets of this rank once all have met; and those of torchrun, which started it."""
    import psutil
    import torch.distributed as dist

    import launch

    found = {}
    for url in args.url:
        if dist.is_initialized():
            dist.destroy_process_group()
        launch.init_distributed_mode(launch.find_placement("cpu", "gloo"), url, args.timeout)
        dist.barrier()  # all are connected
        port = os.environ["MASTER_PORT"] if url == "env://" else url.rpartition(":")[2] if "tcp://" in url else 0
        found[url] = {"port": int(port), "processes": {f"rank {me['rank']}": sockets(psutil.Process())}}
        if me["rank"] == 0 and "TORCHELASTIC_RUN_ID" in os.environ:
            found[url]["processes"]["torchrun"] = sockets(psutil.Process().parent())
        dist.barrier()  # all have looked
    return found


def sockets(process):
    """The TCP ports that a process listens on, and its connections, (own port, other port) each."""
    look = getattr(process, "net_connections", None) or process.connections  # psutil < 6 has another name
    seen = look(kind="tcp")
    return {"listens": [one.laddr.port for one in seen if one.status == "LISTEN"],
            "connections": [(one.laddr.port, one.raddr.port) for one in seen if one.status == "ESTABLISHED"]}


# -------------------------------------------------------------------------------------------- command


STEPS = {step.__name__: step for step in (hello, chatter, meet)}


def main():
    parser = rank_program.parser(__doc__, timeout=20)
    add = parser.add_argument
    add("--step", nargs="+", required=True, choices=STEPS, metavar="NAME", help=f"one or more of: {', '.join(STEPS)}")
    add("--out", type=nonempty_path, help="each rank writes what it found into this folder, rank-0.json and so on")
    add("--url", nargs="+", default=["env://"], help="where the ranks of `meet` meet, one after the other")
    add("--lines", type=positive(int), default=20, help="lines of `chatter`, of each kind")
    add("--limit", type=positive(float), default=120, help="this process ends after so many seconds, whatever it does")
    args = parser.parse_args()
    with parser.one_line():
        me = identity()
        if any(not url.startswith(("env://", "tcp://", "file:///")) for url in args.url):
            raise ValueError(f"--url {' '.join(args.url)}: each begins with env://, tcp:// or file:///")
        file = args.out and rank_file(args.out, me["rank"])
        if file:
            check_output("--out", file)
            file.unlink(missing_ok=True)  # what an earlier run found is not this one's
    faulthandler.dump_traceback_later(args.limit, exit=True)  # says where it hangs; works even where Python is stuck
    found = {name: STEPS[name](me, args) for name in args.step}
    if file:
        rank_program.write_json(file, me | found)
    if "torch" in sys.modules:
        import shortcuts

        shortcuts.exit_now()


if __name__ == "__main__":
    main()
