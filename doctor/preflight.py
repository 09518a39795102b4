"""Before a long job: does each rank compute, and each connection carry, as the others do?

    torchrun --nnodes=2 --nproc_per_node=8 --rdzv-… -m doctor --preflight

A minute at most, once the ranks have met. Rank 0 prints a table, and a line for each trouble; after a minute it prints
what it has, and all ranks end. There is no list of what hardware should reach: a rank is compared with the median of
the others in the same moment, a connection with those that do not touch its ends. Other programs disturb a test for a
moment. So a rank is slow only if it was in each of several rounds between the other tests, and a connection only in its
fastest message, and again when it is tested alone.
"""

import bisect
import contextlib
import fcntl
import json
import os
import platform
import signal
import socket
import statistics
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LIMIT = 60  # seconds, once all have met: then each rank ends itself
WAIT = 15  # for the others, in one step
GRACE = 10  # seconds for the last words
ENOUGH = 35  # after so many seconds nothing more is begun that can be left out
ROUNDS = 5  # of computing
SLOW_RANK = 1.6  # times the median of the others, in each round. Half a core is 2
SLOW_LINK = 3.0  # times the median of the others
BELOW_CARD = 30  # a connection between nodes carries less than this part of what its network card says
NOISE = 0.01, 0.0002  # seconds, on CPUs and GPUs: a message that is later by less is not called slow
CLOCK = 1.0  # seconds
SHM = 128e6  # bytes; a container has 64e6 by default, and a batch of 256 images of 224 x 224 pixels takes 154e6
FILE = 4 * 2**20

Times = dict[tuple[int, int], float]  # seconds from one rank (or host) to another


class Trouble(Exception):
    """A wait in vain: who waited for whom."""


class Ranks:
    """How the ranks wait for each other and tell each other something: through the store, which no test disturbs."""

    def __init__(self, first: float) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.step, self.began = "the beginning", time.monotonic()
        try:
            store, *_ = next(iter(dist.rendezvous("env://", self.rank, self.size, timeout=timedelta(seconds=first))))
        except RuntimeError as error:
            raise Trouble(f"rank {self.rank} waited {first:g} s for the store at {os.environ['MASTER_ADDR']}:"
                          f"{os.environ['MASTER_PORT']}: {str(error).splitlines()[0][:200]}") from None
        self.store = dist.PrefixStore(f"preflight {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)

    def passed(self) -> float:
        return time.monotonic() - self.began

    def wait(self, key: str, whom: Callable[[], list[int]], bound: float = WAIT) -> None:
        """By asking: a wait of the store itself hears no signal, and torch warns of each that was in vain."""
        end, pause = time.monotonic() + bound, 0.001
        while not self.store.check([key]):
            if time.monotonic() > end:
                raise Trouble(f"rank {self.rank} waited {bound:g} s for {named(whom())} at: {self.step}")
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def meet(self, step: str, bound: float = WAIT) -> None:
        """All ranks are here."""
        self.step = step
        self.store.set(f"{step} {self.rank}", "")
        if self.store.add(f"{step} count", 1) == self.size:
            self.store.set(f"{step} all", "")
        self.wait(f"{step} all",
                  lambda: [rank for rank in range(self.size) if not self.store.check([f"{step} {rank}"])], bound)

    def gather(self, what: str, value: Any) -> list[Any]:
        """What each rank has: on rank 0; elsewhere nothing."""
        self.store.set(f"value of {what} {self.rank}", json.dumps(value))
        self.meet(what)
        keys = [f"value of {what} {rank}" for rank in range(self.size) if not self.rank]
        return [json.loads(self.store.get(key)) for key in keys]

    def told(self, what: str, value: Any = None) -> Any:
        """What rank 0 says."""
        self.step = what
        if self.rank == 0:
            self.store.set(f"told {what}", json.dumps(value))
        self.wait(f"told {what}", lambda: [0])
        return json.loads(self.store.get(f"told {what}"))


def named(ranks: Iterable[int]) -> str:
    ranks = list(ranks)
    text = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) != 1)} {text}"


# ---------------------------------------------------------------------------------------------------- what is measured


def facts(device: torch.device) -> dict[str, Any]:
    """Of this rank: what must be the same on all, and what its host has."""
    cuda = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    same = {"device": device.type, "torch": torch.__version__, "Python": platform.python_version(),
            "CUDA": torch.version.cuda, "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
            "GPU": f"{cuda.name}, {cuda.total_memory >> 30} GiB" if cuda else None,
            "threads": torch.get_num_threads(), "kernel's architecture": platform.machine()}
    shm = os.statvfs("/dev/shm") if os.path.isdir("/dev/shm") else None
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return {"host": socket.gethostname(), "same": same, "cores": cores, "device": str(device),
            "shm": shm.f_bavail * shm.f_frsize if shm else None, "card": card(), "pid": os.getpid()}


def card() -> tuple[str, float] | None:
    """(name, bits per second) of the card that leads to rank 0's host, as the card says it; None where it does not."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((os.environ["MASTER_ADDR"], 9))  # sends nothing
            for _, name in socket.if_nameindex():
                try:
                    found = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR, of Linux
                except OSError:  # it has no address
                    continue
                speed = Path(f"/sys/class/net/{name}/speed")
                if socket.inet_ntoa(found[20:24]) == probe.getsockname()[0] and name != "lo" and speed.is_file():
                    megabits = int(speed.read_text())
                    return (name, megabits * 1e6) if megabits > 0 else None
    except OSError:  # another system, or a card without a speed
        pass
    return None


def timed(work: Callable[[], Any], device: torch.device) -> float:
    begin = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


class Computing:
    """A matrix product and a copy, in rounds."""

    def __init__(self, device: torch.device):
        self.device, self.side = device, 8192 if device.type == "cuda" else 384
        self.a, self.b = (torch.randn(self.side, self.side, device=device) for _ in range(2))
        self.source = torch.zeros((256 if device.type == "cuda" else 16) * 2**20, dtype=torch.uint8, device=device)
        self.target = torch.empty_like(self.source)
        for _ in range(3):
            timed(lambda: self.a @ self.b, device)

    def round(self) -> tuple[float, float]:
        """Mean seconds of a product, median of a copy, of a third of a second. The mean: a program that takes half of
        the core stops some products for milliseconds, and leaves the others as they are."""
        products: list[float] = []
        copies: list[float] = []
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.3 or len(products) < 5:
            products.append(timed(lambda: self.a @ self.b, self.device))
            if len(products) % 8 == 1:
                copies.append(timed(lambda: self.target.copy_(self.source), self.device))
        return statistics.mean(products), statistics.median(copies)


def all_reduces(ranks: Ranks, name: str, group: Any, sizes: Iterable[int], device: torch.device) -> dict[int, float]:
    """{bytes: seconds of the slowest rank}, median of three. A size that would take seconds is left out."""
    seconds, last = {}, (1, 0.0)
    for size in sizes:
        if last[0] >= 2**18 and last[1] * size / last[0] > 3:
            break
        step, took = f"an all-reduce of {size:,} bytes, {name}", 0.0
        if ranks.told(f"too late for {step}", ranks.passed() > ENOUGH):  # the ranks' own clocks differ
            break
        ranks.meet(step)
        if group is not None:
            data = torch.zeros(size // 4, device=device)
            talk(ranks, partial(dist.all_reduce, data, group=group), "all others of the group")
            took = statistics.median(timed(partial(dist.all_reduce, data, group=group), device)
                                     for _ in range(3))
        every = ranks.gather(f"seconds of {step}", took)
        took = ranks.told(f"slowest of {step}", max(every, default=0))
        seconds[size], last = took, (size, took)
    return seconds


def talk(ranks: Ranks, message: Callable[[], Any], whom: str) -> Any:
    try:
        return message()
    except RuntimeError as error:
        raise Trouble(f"rank {ranks.rank} waited for {whom} at: {ranks.step}. "
                      f"{str(error).splitlines()[0][:200]}") from None


def one_way(ranks: Ranks, pair: tuple[int, int], size: int, device: torch.device) -> Times:
    """Seconds of the fastest of three messages, each way, on the side that sent; both ranks of the pair call it."""
    data, short, times = torch.zeros(size, dtype=torch.uint8, device=device), torch.zeros(1, device=device), {}
    for source, target in (pair, pair[::-1]):
        first, second = (dist.send, dist.recv) if ranks.rank == source else (dist.recv, dist.send)
        other = target if ranks.rank == source else source

        def there_and_back(first: Any = first, second: Any = second, other: int = other) -> None:
            first(data, other)
            second(short, other)

        took = [timed(partial(talk, ranks, there_and_back, named([other])), device) for _ in range(4)][1:]
        if ranks.rank == source:
            times[source, target] = min(took)
    return times


def schedule(size: int) -> Iterator[dict[int, int]]:
    """Rounds in which each rank has another partner: {rank: partner}. (Of an odd number one rests.)"""
    even = size + size % 2
    for turn in range(even - 1):
        circle = [even - 1, *((turn + place) % (even - 1) for place in range(even - 1))]
        pairs = [(circle[0], circle[1]), *((circle[1 + place], circle[-place]) for place in range(1, even // 2))]
        yield {one: other for pair in pairs for one, other in (pair, pair[::-1]) if max(pair) < size}


def clock(ranks: Ranks, hosts: list[str]) -> list[tuple[str, float, float]]:
    """[(host, seconds that its clock is ahead of rank 0's, error)]: of 5 questions the one answered soonest."""
    answers = []
    for rank, host in ((hosts.index(host), host) for host in sorted(set(hosts) - {hosts[0]})):
        if ranks.told(f"too late for the clock of {host}", ranks.passed() > ENOUGH + 5):
            break
        ranks.meet(f"the clock of {host}")
        if ranks.rank in (0, rank):
            for _ in range(5):
                stamp, begin = torch.zeros(1, dtype=torch.float64), time.time()
                if ranks.rank:
                    talk(ranks, partial(dist.recv, stamp, 0), "rank 0")
                    talk(ranks, partial(dist.send, stamp.fill_(time.time()), 0), "rank 0")
                else:
                    for message in (dist.send, dist.recv):
                        talk(ranks, partial(message, stamp, rank), named([rank]))
                    end = time.time()
                    answers.append((host, stamp.item() - (begin + end) / 2, (end - begin) / 2))
    best = {host: min((each for each in answers if each[0] == host), key=lambda each: each[2]) for host, *_ in answers}
    return list(best.values())


def shared_file(ranks: Ranks) -> list[float | None]:
    """Rank 0 writes a file into this folder, all read it: seconds, or None where it did not appear within 5 s."""
    path, begin, seconds = Path.cwd() / f".preflight-{ranks.told('a name', os.getpid())}", time.monotonic(), None
    if ranks.rank == 0:
        with contextlib.suppress(OSError):  # a folder that may not be written: then nobody sees the file
            path.write_bytes(b"x" * FILE)
    ranks.meet("a file is written")
    try:
        begin = time.monotonic()
        while seconds is None and time.monotonic() - begin < 5:
            if path.is_file() and len(path.read_bytes()) == FILE:
                seconds = time.monotonic() - begin
            else:
                time.sleep(0.1)
        return ranks.gather("a file is read", seconds)
    finally:
        if ranks.rank == 0:
            path.unlink(missing_ok=True)


def busiest(own: set[int], seconds: float = 0.5) -> str:
    """The program on this host, none of ours, that takes the most of its cores."""
    def used() -> dict[int, tuple[int, str]]:
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                name, rest = stat.read_text().rpartition(")")[::2]
            except OSError:  # it has ended
                continue
            found[int(stat.parent.name)] = sum(map(int, rest.split()[11:13])), name.partition("(")[2]
        return found

    before = used()
    time.sleep(seconds)
    spent = {pid: (ticks - before[pid][0], name) for pid, (ticks, name) in used().items()
             if pid in before and pid not in own}
    pid = max(spent, key=lambda pid: spent[pid][0], default=0)
    share = spent[pid][0] / os.sysconf("SC_CLK_TCK") / seconds if pid else 0
    return f"{spent[pid][1]} (process {pid}) takes {share:.0%} of a core there" if share > 0.2 else ""


# ----------------------------------------------------------------------------------------------------- what is compared


def slow_computing(rounds: list[list[tuple[float, float]]], part: int) -> dict[int, float]:
    """{rank: how many times the median of the others it takes, at least}. rounds[round][rank][part] are seconds."""
    size = len(rounds[0])
    ratio = {rank: min(each[rank][part] / statistics.median(
        other[part] for number, other in enumerate(each) if number != rank) for each in rounds)
        for rank in range(size)} if size > 1 else {}
    return {rank: least for rank, least in ratio.items() if least > SLOW_RANK}


def slow_ends(times: Times, noise: float) -> tuple[dict[int, tuple[float, float]], dict[tuple[int, int], tuple]]:
    """({end whose every connection is slow: (its fastest, the others' median)}, {other slow connection: the same}).

    An end (a rank, a host) is compared with the connections that do not touch it: if one of three ranks is slow, two of
    three connections are."""
    def late(mine: float, usual: float) -> bool:
        return mine > SLOW_LINK * usual and mine > usual + noise

    fastest = min(times.values(), default=0.0)
    touching: dict[int, tuple[list[float], list[float]]] = {}
    for pair, took in times.items():
        for side in (0, 1):
            touching.setdefault(pair[side], ([], []))[side].append(took)
    ends: dict[int, tuple[float, float]] = {}
    for end, sides in touching.items():
        # Only what is late beside the very fastest can be late beside the median: few ends are looked at closely.
        slow = [min(mine) for mine in sides if len(mine) > 1 and late(min(mine), fastest)]
        others = [took for pair, took in times.items() if end not in pair] if slow else []
        for mine in slow:
            if others and late(mine, statistics.median(others)):
                ends[end] = mine, statistics.median(others)
    rest = {pair: took for pair, took in times.items() if not ends.keys() & set(pair)}
    ordered, pairs = sorted(rest.values()), {}
    for pair, took in rest.items():
        if len(ordered) > 1:
            at, count = bisect.bisect_left(ordered, took), len(ordered) - 1  # the median of all but this one
            usual = sum(ordered[place + (place >= at)] for place in ((count - 1) // 2, count // 2)) / 2
            if late(took, usual):
                pairs[pair] = took, usual
    return ends, pairs


def megabits(size: int, seconds: float) -> str:
    rate = 8 * size / seconds / 1e6
    return f"{rate:.3g} Mbit/s" if rate < 1000 else f"{rate / 1000:.3g} Gbit/s"


def slow_links(times: Times, size: int, every: list[dict], noise: float) -> Iterator[tuple[str, str, str, set]]:
    """(name, who, seen, its pairs of ranks) of each slow host, rank, pair."""
    hosts = [each["host"] for each in every]
    names = list(dict.fromkeys(hosts))
    between = {pair: took for pair, took in times.items() if hosts[pair[0]] != hosts[pair[1]]}
    places = {name: place for place, name in enumerate(names)}
    cards = {places[each["host"]]: each["card"] for each in reversed(every)}  # of each host's first rank
    of_hosts: Times = {}
    members: dict[tuple[int, int], set] = {}  # {pair of hosts: its pairs of ranks}
    for (one, other), took in between.items():
        pair = places[hosts[one]], places[hosts[other]]
        of_hosts[pair] = min(took, of_hosts.get(pair, took))
        members.setdefault(pair, set()).add((one, other))

    def carries(took: float, usual: float) -> str:
        return f"carries {megabits(size, took)}; the median of the others is {megabits(size, usual)}."

    ends, pairs = slow_ends(of_hosts, noise)
    done = set()
    for end, figures in ends.items():
        done |= {pair for pair in between if names[end] in (hosts[pair[0]], hosts[pair[1]])}
        yield "slow_host", names[end], f"even the fastest of its connections to other hosts {carries(*figures)}", done
    for (one, other), figures in pairs.items():
        done |= members[one, other]
        yield "slow_connection", f"{names[one]} to {names[other]}", carries(*figures), members[one, other]
    for (one, other), took in of_hosts.items():
        mine = members[one, other]
        slowest = min(filter(None, (cards[one], cards[other])), key=lambda each: each[1], default=None)
        if slowest and not mine & done and 8 * size / took < slowest[1] / BELOW_CARD and took > noise:
            yield ("slow_connection", f"{names[one]} to {names[other]}",
                   f"carries {megabits(size, took)}, and the card {slowest[0]} says {slowest[1] / 1e6:,.0f} Mbit/s.",
                   mine)
    for inside in (True, False):
        part = {pair: took for pair, took in times.items()
                if (hosts[pair[0]] == hosts[pair[1]]) == inside and pair not in done}
        ends, pairs = slow_ends(part, noise)
        for end, figures in ends.items():
            yield ("slow_links", f"rank {end} on {hosts[end]}",
                   f"even the fastest of its connections {carries(*figures)}", {pair for pair in part if end in pair})
        for pair, figures in pairs.items():
            if pair[::-1] not in pairs or pair[0] < pair[1]:
                way = "and" if pair[::-1] in pairs else "to"
                yield ("slow_connection", f"rank {pair[0]} {way} rank {pair[1]}"
                       + f" ({hosts[pair[0]]} {way} {hosts[pair[1]]})" * (not inside), carries(*figures),
                       {pair, pair[::-1]} & pairs.keys())


LOOK = {
    "slow_rank": "nvidia-smi (clocks, temperature, other processes) or top on that host; does it share its core?",
    "slow_host": "the cable, the port's speed (ethtool), its errors (ip -s link), another job that sends from there.",
    "slow_links": "the rank's card or GPU (nvidia-smi topo -m), its errors (ip -s link, nvidia-smi nvlink -e).",
    "slow_connection": "the way between these two: switch, cable, route; with NCCL_DEBUG=INFO, NET/IB or NET/Socket?",
    "versions": "the image, the environment or the module that this rank's host starts.",
    "threads": "OMP_NUM_THREADS: at most cores / ranks of the host.",
    "shared_memory": "docker run --shm-size=16g (or --ipc=host), the pod's emptyDir of medium Memory.",
    "file_system": "mount | grep on both hosts. Without a shared folder each host needs the data, and its checkpoints.",
    "clock": "chronyc tracking on both hosts: with other clocks the logs of a failure cannot be put in order.",
    "failed": "the rank that was waited for: its host, its console; a firewall between the two.",
}


def troubles(known: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(name, who, what was seen)"""
    every = known.get("facts", [])
    for key in every[0]["same"] if every else ():
        values = [each["same"][key] for each in every]
        usual = Counter(values).most_common(1)[0][0]
        for value in dict.fromkeys(value for value in values if value != usual):
            those = [rank for rank, own in enumerate(values) if own == value]
            yield "versions", f"{named(those)} on {every[those[0]]['host']}", f"{key} {value}; most ranks: {usual}."
    for host in dict.fromkeys(each["host"] for each in every):
        here = [each for each in every if each["host"] == host]
        threads = sum(each["same"]["threads"] for each in here)
        cores = len({core for each in here for core in each["cores"]})  # a launcher may bind each rank to some of them
        if threads > cores and max(each["same"]["threads"] for each in here) > 1:
            yield "threads", host, f"its {len(here)} ranks start {threads} threads on {cores} cores."
        if here[0]["shm"] is not None and here[0]["shm"] < SHM:
            yield ("shared_memory", host,
                   f"/dev/shm has {here[0]['shm'] / 1e6:.0f} MB; loader workers hand over batches there.")
    for part, what in enumerate(("a matrix product", "a copy")):
        rounds, said = known.get("rounds", []), known.get("busiest", {})
        for rank, least in slow_computing(rounds, part).items() if rounds and len(rounds) == ROUNDS else ():
            if part == 0 or rank not in slow_computing(rounds, 0):
                yield ("slow_rank", f"rank {rank} on {every[rank]['host']}", f"{what} takes {least:.2g} times as long "
                       f"as on the others, or more, in each of {ROUNDS} rounds. {said[rank] if said else ''}".strip())
    if known.get("pairs"):
        for name, who, seen, _ in slow_links(known["pairs"], known["bytes"], every, known["noise"]):
            yield name, who, seen
    for host, ahead, error in known.get("clocks", ()):
        if abs(ahead) - error > CLOCK:
            yield "clock", host, f"its clock is {ahead:+.1f} s from that of {every[0]['host']}."
    unread = [rank for rank, seconds in enumerate(known.get("file", ())) if seconds is None]
    if unread:
        yield ("file_system", f"{named(unread)} on {every[unread[0]]['host']}",
               f"what rank 0 wrote into {Path.cwd()} did not appear there within 5 s.")
    for text in known.get("failed", ()):
        yield "failed", "a wait in vain", text + "."


def table(known: dict[str, Any], size: int, seconds: float) -> Iterator[str]:
    every = known.get("facts", [])
    hosts = list(dict.fromkeys(each["host"] for each in every))
    yield (f"preflight: {size} rank{'s' * (size > 1)} on {len(hosts) or '?'} host{'s' * (len(hosts) != 1)}, "
           f"{seconds:.0f} s" + (f", torch {every[0]['same']['torch']}" if every else ""))
    if "meeting" in known:
        yield f"  they met in {known['meeting']:.2g} s"
    if known.get("rounds"):
        yield f"  {'rank':>6}  {'host':16}{'device':8}{'product':>12}{'copy':>10}{'sends':>13}{'receives':>13}"
        shown = range(size) if size <= 16 else (*range(8), *range(size - 8, size))
        for rank in shown:
            product, copy = (statistics.median(each[rank][part] for each in known["rounds"]) for part in (0, 1))
            ways = [[took for pair, took in known.get("pairs", {}).items() if pair[side] == rank] for side in (0, 1)]
            sends, receives = (megabits(known["bytes"], min(way)) if way else "-" for way in ways)
            yield (f"  {rank:>6}  {every[rank]['host'][:15]:16}{every[rank]['device']:8}{1e3 * product:>9.3g} ms"
                   f"{1e3 * copy:>7.3g} ms{sends:>13}{receives:>13}")
    for name, seconds_of in known.get("all_reduces", {}).items():
        yield f"  all-reduce {name}: " + ", ".join(
            f"{byte / 2**20:g} MiB {1e3 * took:.3g} ms" for byte, took in seconds_of.items() if took)
    if known.get("pairs"):
        yield (f"  pairs: {len(known['pairs']) // 2} of {size * (size - 1) // 2} tested with messages of "
               f"{known['bytes'] / 2**20:.3g} MiB" + (f"; no time to test {known['left']} slow ones again, alone"
                                                      if known.get("left") else ""))
    if read := [seconds for seconds in known.get("file", ()) if seconds is not None]:
        yield (f"  a file of {FILE >> 20} MiB, written by rank 0, was read by {len(read)} ranks in "
               f"{1e3 * max(read):.0f} ms at most")
    if known.get("clocks"):
        host, ahead, error = max(known["clocks"], key=lambda each: abs(each[1]))
        yield (f"  clocks of {len(known['clocks'])} of {len(hosts) - 1} other hosts: at most {1e3 * ahead:+.1f} ms "
               f"from rank 0's, to {1e3 * error:.1f} ms ({host})")


# ------------------------------------------------------------------------------------------------------------- the run


def test(ranks: Ranks, known: dict[str, Any]) -> None:
    """All tests, in order. What has been measured stands in `known`, on rank 0, should a later one fail."""
    begin = time.monotonic()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0  # some launchers show each rank one of its own
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % gpus) if gpus else torch.device("cpu")
    known["facts"] = ranks.gather("facts", facts(device))
    hosts = ranks.told("hosts", [each["host"] for each in known["facts"]])
    if ranks.told("any without a GPU", any(each["same"]["device"] == "cpu" for each in known["facts"])):
        device = torch.device("cpu")  # all of them: else they would wait for each other in two backends
    known["noise"] = NOISE[device.type == "cuda"]
    computing, known["rounds"] = Computing(device), []

    def compute() -> None:
        ranks.meet(f"computing, round {len(known['rounds']) + 1}")
        known["rounds"].append(ranks.gather(f"computed, round {len(known['rounds']) + 1}", computing.round()))

    compute()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # its watchdog would end the ranks before rank 0's table
    ranks.step = "init_process_group"
    talk(ranks, lambda: dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", store=ranks.store, rank=ranks.rank,
        world_size=ranks.size, timeout=timedelta(seconds=WAIT)), "all others")
    known["meeting"] = time.monotonic() - begin
    compute()
    known["all_reduces"], known["pairs"] = {}, {}
    groups, names = ["over all"], list(dict.fromkeys(hosts))
    inside = [[rank for rank, host in enumerate(hosts) if host == name] for name in names]
    made: dict[str, Any] = {"over all": dist.group.WORLD}
    if len(names) > 1:
        firsts = [members[0] for members in inside]
        for name, those in (("within hosts", inside), ("between hosts", [firsts])):
            for members in those:
                group = dist.new_group(members, timeout=timedelta(seconds=WAIT))
                if ranks.rank in members and len(members) > 1:
                    made[name] = group
            if max(map(len, those)) > 1:
                groups.append(name)
    if ranks.size > 1:
        for name in groups:
            known["all_reduces"][name] = all_reduces(ranks, name, made.get(name), (4096, 2**18, 2**20, 2**24), device)
    compute()
    if ranks.size > 1:
        pairs(ranks, known, device)
    compute()
    known["file"] = shared_file(ranks)
    known["clocks"] = clock(ranks, hosts)
    while len(known["rounds"]) < ROUNDS:
        compute()
    slow = ranks.told("slow ranks", list(slow_computing(known["rounds"], 0) | slow_computing(known["rounds"], 1))
                      if ranks.rank == 0 else None)
    pids = ranks.told("processes", [[each["host"], each["pid"]] for each in known["facts"]])
    own = {pid for host, pid in pids if host == socket.gethostname()}
    known["busiest"] = ranks.gather("the busiest", busiest(own) if ranks.rank in slow else "")


def pairs(ranks: Ranks, known: dict[str, Any], device: torch.device) -> None:
    """Each rank with each other, in rounds; then those that seem slow once more, alone."""
    sizes = known["all_reduces"]["over all"]
    largest = max(sizes, default=2**18)
    took = max(sizes.get(largest, 0.02), 1e-6)
    size = ranks.told("bytes of a message", min(max(int(0.02 * largest / took), 2**18), 2**25))
    times: Times = {}
    known["bytes"] = size
    for number, partners in enumerate(schedule(ranks.size)):
        if not ranks.told(f"pairs, round {number + 1}", ranks.passed() < ENOUGH):
            break
        partner = partners.get(ranks.rank)
        if partner is not None:
            times |= one_way(ranks, (min(ranks.rank, partner), max(ranks.rank, partner)), size, device)
        ranks.meet(f"after pairs, round {number + 1}")
    for each in ranks.gather("seconds of pairs", [[*pair, took] for pair, took in times.items()]):
        known["pairs"] |= {(one, other): took for one, other, took in each}
    suspects: list = []
    if ranks.rank == 0:
        found = [those for *_, those in slow_links(known["pairs"], size, known["facts"], known["noise"])]
        suspects = sorted({tuple(sorted(pair)) for those in found for pair in those},
                          key=lambda pair: known["pairs"][pair])  # the fastest first: it decides on an end
    again: Times = {}
    suspects = ranks.told("suspects", suspects)
    for number, pair in enumerate(suspects):
        if ranks.told(f"too late for suspect {number + 1}", ranks.passed() > ENOUGH):
            known["left"] = len(suspects) - number
            break
        if ranks.rank in pair:
            again |= one_way(ranks, tuple(pair), size, device)
        ranks.meet(f"alone, pair {number + 1}")
    for each in ranks.gather("seconds alone", [[*pair, took] for pair, took in again.items()]):
        known["pairs"] |= {(one, other): min(took, known["pairs"][one, other]) for one, other, took in each}


def ended(ranks: Ranks, known: dict[str, Any], file: Path | None) -> None:
    """The last resort, in a thread of its own: a call of the main thread does not come back."""
    last = threading.Timer(GRACE, os._exit, [1])  # the store, too, may not answer
    last.daemon = True
    last.start()
    failed(ranks, f"rank {ranks.rank} was ended after {LIMIT} s, at: {ranks.step}")
    if ranks.rank == 0:
        time.sleep(2)  # the others say where they were
        concluded(ranks, known, file)
        os._exit(1)
    time.sleep(GRACE)  # torchrun ends all when the first ends: that must not be before rank 0's table


def failed(ranks: Ranks, text: str) -> None:
    sys.stderr.write(f"preflight: {text}\n")
    sys.stderr.flush()
    with contextlib.suppress(dist.DistError):
        ranks.store.set(f"failed {ranks.rank}", text)


def concluded(ranks: Ranks, known: dict[str, Any], file: Path | None) -> int:
    """Rank 0 prints what is known, and tells all ranks their exit status: 1 if there is trouble."""
    known["failed"] = [ranks.store.get(key).decode() for key in (f"failed {rank}" for rank in range(ranks.size))
                       if ranks.store.check([key])]
    found = [{"name": name, "who": who, "seen": seen, "look": LOOK[name]} for name, who, seen in troubles(known)]
    lines = list(table(known, ranks.size, ranks.passed()))
    lines += [f"trouble: {each['who']}: {each['seen']} Look at: {each['look']}" for each in found]
    lines.append(f"preflight: {len(found)} trouble{'s' * (len(found) > 1)}." if found else "preflight: nothing found.")
    print("\n".join(lines), flush=True)
    if file:
        file.write_text(json.dumps({"troubles": found, "table": lines}, indent=1) + "\n")
    return int(ranks.told("status", int(bool(found))))


def run(file: Path | None, first: float) -> int:
    """The exit status: 1 if there is trouble, or a wait was in vain. The ranks wait `first` seconds for each other to
    start: torch may come from a slow file system."""
    def stopped(*_: Any) -> None:
        raise Trouble(f"rank {ranks.rank} was told to end, at: {ranks.step}")

    known: dict[str, Any] = {}
    try:
        ranks = Ranks(first)
    except Trouble as trouble:
        sys.stderr.write(f"preflight: {trouble}\n")
        return 1
    signal.signal(signal.SIGTERM, stopped)
    timer = threading.Timer(LIMIT, ended, [ranks, known, file])
    timer.daemon = True
    try:
        ranks.meet("the first meeting", first)
        ranks.began = time.monotonic()
        timer.start()
        test(ranks, known)
    except Exception as error:  # whatever it is, rank 0 prints the table of what was found before
        failed(ranks, str(error) if isinstance(error, Trouble) else (
            f"rank {ranks.rank} ended at: {ranks.step}. {type(error).__name__}: "
            f"{(str(error).splitlines() or [''])[0]}"))
    timer.cancel()
    ending = threading.Timer(LIMIT + GRACE, os._exit, [1])  # what follows has bounds, but for the store's answers
    ending.daemon = True
    ending.start()
    if ranks.rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the others end with 1 now, and torchrun would end this rank
        status = concluded(ranks, known, file)
        end = time.monotonic() + 3
        with contextlib.suppress(Trouble, dist.DistError):  # it may have the store: the others read first
            for rank in range(1, ranks.size):
                ranks.wait(f"read {rank}", lambda: [], max(end - time.monotonic(), 0))
    else:
        ranks.step, status = "rank 0's table", 1
        with contextlib.suppress(Trouble, dist.DistError):
            ranks.wait("told status", lambda: [0], max(LIMIT - ranks.passed(), 0) + GRACE)
            status = int(ranks.told("status"))
            ranks.store.set(f"read {ranks.rank}", "")
    torchruns = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", os.devnull))  # what torchrun prints last
    if status and not torchruns.exists():
        torchruns.write_text(json.dumps({"message": {"message": "The preflight found trouble: see its table above.",
                                                     "extraInfo": {"timestamp": int(time.time())}}}))
    sys.stdout.flush()
    os._exit(status)  # a process group that hangs would hang in its destructor, too
