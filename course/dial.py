"""A network of a chosen speed, on this machine: each pair of ranks gets a cable of that rate.

    torchrun --nproc_per_node=4 -m course.dial --rate 200mbit PROGRAM ARGS…
    torchrun --nproc_per_node=4 -m course.dial --rate 200mbit -m doctor PROGRAM ARGS…
    torchrun --nproc_per_node=4 -m course.dial --nodes 2x2 --rate 1gbit --between 20mbit PROGRAM ARGS…
    torchrun --nproc_per_node=4 -m course.dial --rate 200mbit --slow 2:20mbit --slow 0-1:50mbit PROGRAM ARGS…
    torchrun --nproc_per_node=4 -m course.dial --rate 200mbit --count results/live/bytes.json PROGRAM ARGS…
    torchrun --nproc_per_node=4 -m course.dial --check --rate 200mbit

The same torchrun, the same program, the same gloo over TCP. The kernel paces what a rank sends on each connection
(SO_MAX_PACING_RATE, Linux; any user, also in a container), so a message takes time, and hardly any CPU time.

It is a full mesh: a cable of that rate for each pair of ranks, and each of its two directions has the whole rate. So a
rank that sends to three others sends three times the rate. One network card per host, whose connections share its rate,
is what scripts/cluster/lab_cluster.py --rate makes. No latency is added. The last 64 KiB of a message leave at once,
and delay the next message on that connection. The rate must lie well below what the machine carries without a limit:
--check measures that. Only gloo is paced, not NCCL, and only ranks that were started so, not what they start.

--count writes what each connection really carried, by the kernel's own count (TCP_INFO): {"world_size", "rates": [[bits
per second]], "updates": [[[bytes]]], "total": [[bytes]]}. Row i, column j: from rank i to rank j. An update ends with
optimizer.step(), of which one inside another is none; the first begins with the program. `total` has what came after
the last update, too.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import runpy
import socket
import statistics
import struct
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from course import rank_program, timing
from trainer import files, options

SO_MAX_PACING_RATE = 47  # of Linux, asm-generic/socket.h; Python's socket module does not name it
UNLIMITED = 2**64 - 1
BYTES_RECEIVED = 128  # of struct tcp_info, linux/tcp.h: where tcpi_bytes_received stands
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}  # as tc writes them
SLOWEST = 1e6  # bits per second, of --check
WAIT = timedelta(seconds=60)  # for the other ranks' addresses and counts


def bits(text: str) -> float:
    """Bits per second of a rate as `tc` writes it: 200mbit, 1.5gbit, 500kbit. ValueError, one line, for another."""
    number, unit = text[:-4], text[-4:].lower()
    try:
        rate = float(number) * UNITS[unit]
    except (KeyError, ValueError):
        raise ValueError(f"{text!r} is no rate: write it as 200mbit, 1.5gbit or 500kbit") from None
    if not 1e3 <= rate <= 1e12:
        raise ValueError(f"{text!r}: a rate is 1kbit to 1000gbit")
    return rate


def words(rate: str) -> str:
    """"150 Mbit/s" of 150mbit, "no limit" of none, for a picture."""
    return "no limit" if rate == "none" else f"{rate[:-4]} {rate[-4:-3].upper().replace('K', 'k')}bit/s"


def rates(world_size: int, rate: str | None, nodes: str | None = None, between: str | None = None,
          slow: Sequence[str] = ()) -> list[list[float | None]]:
    """Bits per second from rank i (row) to rank j (column); None: no limit.

    `nodes`: "2x2" are two nodes of two ranks; pairs of ranks on different nodes have the rate `between`, all others
    `rate`. `slow`: "2:20mbit" for all connections of rank 2, "1-2:20mbit" for those of one pair; the last one counts.
    ValueError, one line, for what does not fit.
    """
    table = [[None if rate is None else bits(rate)] * world_size for _ in range(world_size)]
    if (nodes is None) != (between is None):
        raise ValueError("--nodes and --between belong together: --nodes 2x2 --between 20mbit")
    if nodes is not None and between is not None:
        count, _, ranks = nodes.partition("x")
        if not (count.isdecimal() and ranks.isdecimal() and int(count) * int(ranks) == world_size):
            raise ValueError(f"--nodes {nodes}: nodes x ranks of each must make the {world_size} ranks that there are")
        for one in range(world_size):
            for other in range(world_size):
                if one // int(ranks) != other // int(ranks):
                    table[one][other] = bits(between)
    for each in slow:
        who, colon, its_rate = each.partition(":")
        named = who.split("-")
        if not colon or len(named) > 2 or len(set(named)) < len(named) or not all(
                name.isdecimal() and int(name) < world_size for name in named):
            raise ValueError(f"--slow {each}: write RANK:RATE or RANK-RANK:RATE, such as 1:20mbit or 0-1:20mbit; the "
                             f"ranks are 0 to {world_size - 1}")
        first, *second = map(int, named)
        for other in second or range(world_size):
            table[first][other] = table[other][first] = bits(its_rate)
    return table


def missing() -> str | None:
    """None where the kernel paces a socket when it is asked to; else a line that says why not."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} paces no sockets: the dial needs Linux"
    with contextlib.closing(socket.socket()) as probe:
        try:
            _limit(probe, 1e8)
            obeyed = struct.unpack("=Q", probe.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8))[0] == 12_500_000
        except (OSError, struct.error):
            obeyed = False
    return None if obeyed else "this kernel, or its sandbox, paces no sockets (SO_MAX_PACING_RATE)"


def _limit(connection: socket.socket, rate: float | None) -> None:
    """Pace what this process sends on a connection: bits per second, or None for no limit."""
    value = UNLIMITED if rate is None else int(rate / 8)
    connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=Q", value))


def _connections() -> list[tuple[socket.socket, str, str]]:
    """This process's TCP connections, each with its two addresses: its own, and the other end's. The caller closes
    them; that ends no connection, they are copies."""
    sockets, found = [], []  # all are listed before the first copy, which would be listed, too
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # it has been closed meanwhile
            if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                sockets.append(int(entry))
    for number in sockets:
        try:
            handle = os.dup(number)
        except OSError:  # the same
            continue
        copy = socket.socket(fileno=handle)
        try:
            if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
                raise OSError
            own, other = ("{}:{}".format(*address[:2]) for address in (copy.getsockname(), copy.getpeername()))
        except OSError:  # of another kind, or it only listens
            copy.close()
            continue
        found.append((copy, own, other))
    return found


class Dial:
    """The ranks' connections, their rates, and what they have carried. A process has one, `dial`."""

    def __init__(self) -> None:
        self.rank, self.world_size = 0, 1
        self.rates: list[list[float | None]] = [[None]]
        self.peers: dict[tuple[str, str], int] = {}
        """(own address, other address) of a connection: the rank at its other end"""
        self.received: dict[tuple[str, str], int] = {}
        """bytes, when last looked at: a closed connection keeps its count"""
        self.updates: list[list[int]] = []
        """bytes that this rank has received from each rank until the end of each update"""

    def find(self, store: dist.Store, rank: int, ranks: Sequence[int]) -> None:
        """Learn which of the connections lead to which of `ranks`: all of them call it, with a store of their own."""
        root = store
        while isinstance(root, dist.PrefixStore):
            root = root.underlying_store
        of_store = f":{root.port}" if isinstance(root, dist.TCPStore) else None  # rank 0 may be its server
        mine = [(own, other) for copy, own, other in _connections()
                if not copy.close() and not (of_store and (own.endswith(of_store) or other.endswith(of_store)))]
        store.set(f"dial {rank}", json.dumps(mine))
        for peer in ranks:
            if peer != rank:
                try:
                    store.wait([f"dial {peer}"], WAIT)
                except dist.DistStoreError:
                    raise TimeoutError(f"the dial: rank {rank} waited {WAIT.seconds} s for rank {peer} to say which "
                                       "connections it has") from None
                theirs = {(other, own) for own, other in json.loads(store.get(f"dial {peer}"))}
                found = theirs.intersection(mine)
                if not found:
                    raise files.Refused(f"the dial: rank {rank} has found no TCP connection to rank {peer}. It paces "
                                        "gloo's, which it finds when a group is made: unset TORCH_GLOO_LAZY_INIT")
                self.peers |= dict.fromkeys(found, peer)

    def turn(self) -> None:
        """Give each connection its rate."""
        for copy, own, other in _connections():
            with contextlib.closing(copy):
                if (own, other) in self.peers:
                    _limit(copy, self.rates[self.rank][self.peers[own, other]])

    def count(self) -> list[int]:
        """Bytes that this rank has received from each rank, of all connections so far, by the kernel's count."""
        for copy, own, other in _connections():
            with contextlib.closing(copy):
                if (own, other) in self.peers:
                    info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    self.received[own, other] = struct.unpack_from("=Q", info, BYTES_RECEIVED)[0]
        counted = [0] * self.world_size
        for connection, number in self.received.items():
            counted[self.peers[connection]] += number
        return counted


dial = Dial()


def _new_group(size, rank, ranks, backend, store, *more, **options):
    """In the place of torch's own: a new group's connections get their rates as soon as they exist."""
    used = set(distributed_c10d.BackendConfig(distributed_c10d.Backend(backend)).get_device_backend_map().values())
    if others := " and ".join(sorted(used - {"gloo"})):  # with GPUs the default is gloo and NCCL
        raise files.Refused(f"the dial paces gloo, and here it would be {others}: keep the ranks on the CPU, by "
                            'init_process_group("gloo"), or main.py --device cpu')
    group, own_store = _torch_new_group(size, rank, ranks, backend, store, *more, **options)
    if own_store is not None:  # this rank is in the group
        ranks = ranks or range(size)
        dial.find(own_store, ranks[rank], ranks)
        dial.turn()
    return group, own_store


_torch_new_group = distributed_c10d._new_process_group_helper


def pace(rate: str | None, nodes: str | None = None, between: str | None = None, slow: Sequence[str] = ()) -> None:
    """Set the rates of all connections between ranks, now and of later groups. Every rank calls it, after
    init_process_group("gloo"); the words are those of the command, see rates(). pace(None) takes all limits away.

    Raises ValueError for rates that do not fit, OSError where the kernel does not pace: one line each.
    """
    if reason := missing():
        raise OSError(reason)
    if "nccl" in dist.get_backend():
        raise ValueError("the dial paces gloo, and this group's backend is nccl")
    first, dial.rank, dial.world_size = not dial.peers, dist.get_rank(), dist.get_world_size()
    dial.rates = rates(dial.world_size, rate, nodes, between, slow)
    if first:  # later groups tell their connections themselves
        dial.find(distributed_c10d._get_default_store(), dial.rank, range(dial.world_size))
        distributed_c10d._new_process_group_helper = _new_group
    dial.turn()


def check_rates(rates: Sequence[str]) -> None:
    """For a program that paces its ranks at each of them; "none" is no limit. ValueError, one line, for what is no
    rate; OSError, one line, where a limit is asked for and this machine has no dial."""
    for rate in rates:
        if rate != "none":
            bits(rate)
    if list(rates) != ["none"] and (reason := missing()):
        raise OSError(reason)


def rounds(rates: Sequence[str], programs: Mapping[Hashable, Callable[[], object]], count: int) -> dict[str, dict]:
    """{rate: {name: what the program returned in each round}}: at one rate after the other the programs take turns. All
    ranks call it. The only rate "none" needs no dial."""
    results = {}
    for rate in rates:
        if list(rates) != ["none"]:
            pace(None if rate == "none" else rate)
        results[rate] = timing.interleave(programs, count)
    return results


def counted() -> list[int]:
    """Bytes that this rank has received from each rank on connections that pace() has seen, by the kernel's count."""
    return dial.count()

# --------------------------------------------------------------------------------------------------------- the command


def count_updates(path: str | Path) -> None:
    """Count at the end of each update, and write the file when the program leaves its group."""
    def leave(group=None):
        if group in (None, dist.group.WORLD) and dist.is_initialized() and sys.exc_info()[0] is None:
            collect(path, distributed_c10d._get_default_store())
        leave_group(group)

    def step_begins(*_):
        nonlocal inside
        inside += 1

    def step_ends(*_):
        nonlocal inside
        inside -= 1
        if inside == 0:  # ZeroRedundancyOptimizer's step calls that of its own optimizer
            dial.updates.append(dial.count())

    inside, leave_group = 0, dist.destroy_process_group
    dist.destroy_process_group = distributed_c10d.destroy_process_group = leave
    register_optimizer_step_pre_hook(step_begins)
    register_optimizer_step_post_hook(step_ends)


def collect(path: str | Path, store: dist.Store) -> None:
    """Rank 0 writes what all ranks have counted. No rank leaves before all have counted: a closed connection has no
    count. Rank 0 leaves last, since the store may be in its process."""
    store.set(f"dial counted {dial.rank}", json.dumps([*dial.updates, dial.count()]))
    keys = wait_for_all(store, "counted")
    store.set(f"dial met {dial.rank}", "")
    if dial.rank:
        return
    wait_for_all(store, "met")
    received = [json.loads(store.get(key)) for key in keys]
    if len({len(each) for each in received}) > 1:
        raise ValueError("--count: the ranks made different numbers of updates: "
                         f"{[len(each) - 1 for each in received]}")
    # A rank tells what it has received; a row of a table is what a rank has sent.
    *until, total = [[list(sent) for sent in zip(*of_ranks, strict=True)] for of_ranks in zip(*received, strict=True)]
    before = [[[0] * dial.world_size] * dial.world_size, *until]
    updates = [[[new - old for old, new in zip(*rows, strict=True)] for rows in zip(*tables, strict=True)]
               for tables in zip(before, until, strict=False)]
    rank_program.write_json(path, {"world_size": dial.world_size, "rates": dial.rates, "updates": updates,
                                   "total": total})


def wait_for_all(store: dist.Store, what: str) -> list[str]:
    """The keys under which all ranks have said so."""
    keys = [f"dial {what} {rank}" for rank in range(dial.world_size)]
    try:
        store.wait(keys, WAIT)
    except dist.DistStoreError:
        here = [rank for rank, key in enumerate(keys) if store.check([key])]
        raise TimeoutError(f"the dial: rank {dial.rank} waited {WAIT.seconds} s for all ranks to have {what}; ranks "
                           f"{here} have") from None
    return keys


def exchange(size: int, times: int = 5) -> float:
    """Seconds in which each rank sends `size` bytes to each other rank, all at once: the median of so many times, of
    the slowest rank."""
    others = [rank for rank in range(dial.world_size) if rank != dial.rank]
    out = torch.zeros(size, dtype=torch.uint8)
    into = {rank: torch.empty_like(out) for rank in others}

    def to_all():
        for message in [dist.irecv(into[rank], rank) for rank in others] + [dist.isend(out, rank) for rank in others]:
            message.wait()

    return statistics.median(timing.slowest([timing.timed(to_all, 1, out.device) for _ in range(times)]))


def check(rate: str) -> str:
    """What this machine carries, and whether the kernel applies the limit, in two lines. ValueError, one line: it
    cannot show this rate."""
    if bits(rate) < SLOWEST:
        raise ValueError(f"--rate {rate}: below {SLOWEST / 1e6:g}mbit a check takes minutes. Such a rate can be shown "
                         "where a faster one can")
    size, cables = 4 * 1024**2, dial.world_size * (dial.world_size - 1)
    exchange(size)
    free = 8 * size / exchange(size)
    if bits(rate) > free / 2:
        raise ValueError(f"--rate {rate} cannot be shown here: without a limit each of {cables} directions carries "
                         f"{free / 1e6:.0f}mbit, when all are busy. Take at most half of that")
    pace(rate)
    size = max(2**20, min(size, int(bits(rate) / 8)))  # well above the 64 KiB that leave at once
    by_bytes = 8 * size / bits(rate)
    seconds = exchange(size, times=5 if by_bytes < 1 else 1)
    if not 0.8 < seconds / by_bytes < 1.3:
        raise ValueError(f"at --rate {rate} {size / 2**20:.0f} MiB took {1e3 * seconds:.0f} ms, predicted "
                         f"from the bytes {1e3 * by_bytes:.0f} ms: this kernel does not pace, or its cores are busy")
    return (f"without a limit each of {cables} directions carries {free / 1e6:.0f}mbit, when all are busy\n"
            f"at {rate} {size / 2**20:.0f} MiB take {1e3 * seconds:.0f} ms; predicted from the bytes: "
            f"{1e3 * by_bytes:.0f} ms")


def parser():
    made = rank_program.parser(__doc__)
    add = made.add_argument
    add("--rate", metavar="RATE", help="of each pair of ranks, each way: 200mbit, 1.5gbit, 500kbit")
    add("--nodes", metavar="NxR", help="N nodes of R ranks each; needs --between")
    add("--between", metavar="RATE", help="of each pair of ranks on different nodes")
    add("--slow", metavar="RANK[-RANK]:RATE", action="append", default=[],
        help="of all connections of one rank, or of one pair; may be repeated")
    add("--count", metavar="FILE", type=options.nonempty_path, help="write the bytes of each connection, as JSON")
    add("--check", action="store_true",
        help="measure what this machine carries, whether the kernel applies the limit, and whether RATE can be shown; "
        "no PROGRAM")
    add("-m", dest="module", action="store_true", help="PROGRAM is a module's name, as python -m takes it")
    add("program", metavar="PROGRAM", nargs="?", help="a Python file, or with -m a module")
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="of the program")
    return made


def found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that is not there
        return False


def run(args) -> None:
    """The program, as python would run it."""
    sys.argv = [args.program, *args.arguments]
    if args.module:
        sys.path.insert(0, "")
        runpy.run_module(args.program, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(args.program).resolve().parent))
        runpy.run_path(args.program, run_name="__main__")


def main() -> None:
    own = parser()
    args = own.parse_args()
    with own.one_line():
        if "RANK" not in os.environ:
            raise ValueError("the dial needs ranks: torchrun --nproc_per_node=4 -m course.dial --rate 200mbit PROGRAM")
        dial.rank, dial.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if reason := missing():
            raise OSError(reason)
        dial.rates = rates(dial.world_size, args.rate, args.nodes, args.between, args.slow)
        if args.check != (args.program is None):
            raise ValueError("name a PROGRAM, or --check without one")
        if args.check and args.rate is None:
            raise ValueError("--check needs the --rate that it is to check")
        if args.module and not found(args.program):
            raise ValueError(f"-m {args.program}: there is no such module here")
        if args.program and not args.module:
            files.check_input("PROGRAM", args.program)
        if args.count:
            files.check_output("--count", args.count)
        if args.check:
            dist.init_process_group("gloo", timeout=WAIT)
            try:
                said = check(args.rate)
            finally:
                dist.destroy_process_group()
            if dial.rank == 0:
                print(said, flush=True)
            return
    distributed_c10d._new_process_group_helper = _new_group
    if args.count:
        count_updates(args.count)
    try:
        try:
            run(args)
        except SystemExit as end:
            if end.code:
                raise
        if dist.is_initialized():  # a program that leaves without destroy_process_group()
            dist.destroy_process_group()
    except files.Refused as refused:  # the program's own errors keep their traceback
        own.error(str(refused))


if __name__ == "__main__":
    sys.modules["course.dial"] = sys.modules["__main__"]  # for programs that import it: a process has one dial
    main()
