"""Ranks that hang: one of them, the culprit, keeps all others waiting. Which one, and by what, is drawn at random.

    python lessons/l12_break_it/hang.py results/live/12_hang --ranks 64

The ranks stand for nodes of 8. FOLDER gets of each rank its stack, 0.txt, 1.txt, ..., and what its flight recorder
holds, a pickle, rank_0, rank_1, ...; and truth.json. The ranks are forked from this process, use gloo, and are asked
where they are when none of them has begun a step for some seconds. Then they are killed.
"""

import multiprocessing
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from course import processes, rank_program
from trainer import options

QUIET = 3  # seconds in which no rank begins a step, before they are asked
LIMIT = 300  # seconds until then, and until all have answered
PER_NODE = 8
AT = 11  # the step of the fault, from 0
FAULTS = {"late": "did not call it", "other": "called barrier in place of all_reduce"}
DISK = "disk"  # in the folder: a pipe into which nobody ever writes
BEGUN = multiprocessing.Array("i", 1024, lock=False)  # steps, by rank; the forked ranks share it


def noted(steps):
    for step in steps:
        BEGUN[dist.get_rank()] = step + 1
        yield step


def load_batch(disk, late):
    if late:
        os.open(disk, os.O_RDONLY)  # as a file on a disk that does not answer: nobody will ever write to it
    return torch.ones(8)


def train(disk, fault):
    """Twenty steps: gradients are added up in each node, then by the nodes' leaders, which tell their nodes.

    `fault`: what this rank does in the twelfth; None on all ranks but one.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    nodes = [dist.new_group(range(first, first + PER_NODE), group_desc=f"node {first // PER_NODE}")
             for first in range(0, ranks, PER_NODE)]
    leaders = dist.new_group(range(0, ranks, PER_NODE), group_desc="leaders")
    node, leader = nodes[rank // PER_NODE], rank - rank % PER_NODE
    for step in noted(range(20)):
        gradient = load_batch(disk, step == AT and fault == "late")
        if step == AT and fault == "other":
            dist.barrier(group=node)
        dist.all_reduce(gradient, group=node)
        if rank == leader:
            dist.all_reduce(gradient, group=leaders)
        dist.broadcast(gradient, src=leader, group=node)


# ---- ranks ---------------------------------------------------------------------------------------------------
def be_rank(rank, ranks, culprit, fault, port, folder, all_started):
    """Train until it hangs. Asked by SIGUSR1, this rank says where it is."""
    torch.set_num_threads(1)
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"  # 64 ranks need no links that nobody uses
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # for this thread, and those that it starts
    threading.Thread(target=dump, args=(folder, rank, threading.get_ident()), daemon=True).start()
    # While the store of the parent serves a rank it holds locks, which a rank that is forked then would wait for.
    all_started.wait()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    train(folder / DISK, fault if rank == culprit else None)


def dump(folder, rank, thread):
    """When asked, write this rank's stack and what its flight recorder holds. With NCCL, PyTorch dumps the recorder
    itself, at a timeout.

    gloo leaves out who is in which group (PyTorch 2.14), so that is added here. The stack of each call is left out, for
    to look up its names takes a second and more on each rank.
    """
    signal.sigwait({signal.SIGUSR1})
    frames = reversed(traceback.extract_stack(sys._current_frames()[thread]))
    lines = [f"{each.name} ({processes.without_folders(each.filename)}:{each.lineno})" for each in frames]
    (folder / f"{rank}.txt").write_text("\n".join(line for line in lines if "multiprocessing" not in line))
    held = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(True, False, False))
    held["pg_config"] = {group.group_name: {"name": group.group_name, "desc": group.group_desc,
                                            "ranks": str(dist.get_process_group_ranks(group))}
                         for group in dist.distributed_c10d._world.pg_map}
    part = folder / f"part_{rank}"
    part.write_bytes(pickle.dumps(held))
    part.rename(folder / f"rank_{rank}")


def run(folder, ranks, culprit, fault):
    """Start the ranks, wait until none goes on, ask them where they are, and kill them. TimeoutError where that takes
    too long."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    os.mkfifo(folder / DISK)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    fork = multiprocessing.get_context("fork")
    all_started = fork.Event()
    started = [fork.Process(target=be_rank, args=(rank, ranks, culprit, fault, store.port, folder, all_started),
                            daemon=True) for rank in range(ranks)]
    give_up, before = time.monotonic() + LIMIT, None

    def pause(seconds):
        time.sleep(seconds)
        if time.monotonic() > give_up:
            raise TimeoutError(f"{ranks} ranks had not all said where they are after {LIMIT} s")

    try:
        for process in started:
            process.start()
        all_started.set()
        while not all(BEGUN[:ranks]) or BEGUN[:ranks] != before:
            before = BEGUN[:ranks]
            pause(QUIET)
        signal_all(started, signal.SIGUSR1)
        while sum((folder / f"rank_{rank}").exists() for rank in range(ranks)) < ranks:
            pause(0.1)
    finally:
        signal_all(started, signal.SIGSTOP)  # no rank shall see another die, and complain
        signal_all(started, signal.SIGKILL)
    rank_program.write_json(folder / "truth.json", {"culprit": culprit, "fault": fault})


def signal_all(started, number):
    for process in started:
        if process.pid:
            os.kill(process.pid, number)


def main():
    parser = rank_program.parser(__doc__)
    parser.add_argument("folder", type=options.nonempty_path, help="what is in it is deleted")
    parser.add_argument("--ranks", type=options.positive(int), default=64, help=f"a multiple of {PER_NODE} from 16")
    parser.add_argument("--culprit", type=int, help="default: drawn; never the first of a node")
    parser.add_argument("--fault", choices=FAULTS, help="default: drawn")
    args = parser.parse_args()
    if args.ranks % PER_NODE or not 16 <= args.ranks <= len(BEGUN):
        parser.error(f"--ranks {args.ranks}: a multiple of {PER_NODE} from 16 to {len(BEGUN)}")
    suspects = [rank for rank in range(args.ranks) if rank % PER_NODE]
    if args.culprit not in (None, *suspects):
        parser.error(f"--culprit {args.culprit}: a rank below {args.ranks}, and not the first of a node")
    culprit = random.choice(suspects) if args.culprit is None else args.culprit
    with rank_program.stoppable(parser):
        run(Path(args.folder), args.ranks, culprit, args.fault or random.choice(list(FAULTS)))
    print(f"{args.ranks} ranks hang. {args.folder} holds what they were asked for.")


if __name__ == "__main__":
    main()
