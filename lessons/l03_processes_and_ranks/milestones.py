"""Two all-reduces, from the second of which the last rank stays away. Each rank notes when it has come how far.

    torchrun --nproc_per_node=2 lessons/l03_processes_and_ranks/milestones.py --wait 3 --out results/live/milestones

Each rank writes rank-0.json and so on: {milestone: time.time()}, the world size, and the names of its environment
variables. The job fails, which is its point. Started by hand, without the others, it shows how a meeting fails.
"""

import argparse
import json
import os
import time
from datetime import timedelta
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wait", type=float, default=3, help="longest wait for another rank, seconds; default: 3")
    parser.add_argument("--out", type=Path, default="results/live/milestones", help="folder; default: %(default)s")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    noted = {"variables": [*os.environ], "world size": world_size}

    def come_to(milestone, value=None):
        noted[milestone] = value or time.time()
        Path(args.out, f"rank-{rank}.json").write_text(json.dumps(noted))

    come_to("start")
    import psutil
    import torch
    import torch.distributed as dist

    come_to("imports")
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.wait))
    come_to("group")
    for name, process in ((f"rank {rank}", psutil.Process()), ("launcher", psutil.Process().parent())):
        sockets = getattr(process, "net_connections", None) or process.connections  # psutil < 6
        if os.environ["MASTER_PORT"] in [str(each.laddr.port) for each in sockets("tcp") if each.status == "LISTEN"]:
            come_to("listens", name)
    dist.all_reduce(torch.ones(1))
    come_to("first all-reduce")
    if rank == world_size - 1:
        time.sleep(10 * args.wait)  # busy with something else
    try:
        dist.all_reduce(torch.ones(1))
    finally:
        come_to("gave up")


if __name__ == "__main__":
    main()
