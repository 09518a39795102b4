"""The ranks put their records together, through torchrun's store or through the process group's."""

import contextlib
import json
import multiprocessing
import os
import threading
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from .log import Log, Record, events_of

LOOK = 0.3  # seconds between two looks at the store
GRACE = 5  # seconds for the others' records, once the first rank has asked for them
MEET = timedelta(seconds=20)  # for the first connection


class Store:
    """One rank's part in it. A rank posts its record once. The rank that reports waits for the others, with a limit."""

    def __init__(self, log: Log, timeout: float):
        self.log, self.timeout = log, timeout
        self.posting, self.over = threading.Lock(), threading.Event()
        self.posted = self.hosts = self.still = self.asked = False
        self.hurried = False  # the launcher ends this rank: another has failed
        self.store: Any = None
        self.mine: Any = None  # the watching thread's
        self.rank, self.size = log.rank, 1
        self.others: dict[int, Record] = {}  # the first state of each: where its log is, should the store go
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # torchrun's store: all ranks are its clients
            self.join(log.rank, int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])

    def join_group(self) -> None:
        """Without torchrun (Slurm, spawn): meet at the store of the process group that has just been made."""
        self.group_store: Any = dist.distributed_c10d._get_default_store()  # kept: it lives as long as rank 0 holds it
        while isinstance(self.group_store, dist.PrefixStore):
            self.group_store = self.group_store.underlying_store
        host, port = (getattr(self.group_store, name, None) for name in ("host", "port"))  # a FileStore has none
        self.join(dist.get_rank(), dist.get_world_size(), host, port)
        self.hosts = self.rank == 0

    def join(self, rank: int, size: int, host: Any, port: Any) -> None:
        self.rank, self.size, self.log.rank = rank, size, rank
        try:
            stores = [dist.TCPStore(host, int(port), None, False, MEET, wait_for_workers=False) for _ in range(2)]
            name = f"doctor {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
            self.mine, self.store = (dist.PrefixStore(name, store) for store in stores)
            self.store.set(f"state {rank}", json.dumps(self.log.state()))  # it may soon be killed
        except (TypeError, ValueError, RuntimeError) as error:
            self.store, self.size = None, 1
            self.log.note("alone", error=str(error).partition("\n")[0][:200])

    def watch(self, stalled: Callable[[], None]) -> None:
        """Start a thread that calls `stalled()` when no rank has moved for the timeout, and posts when others ask."""
        self.watching = threading.Thread(target=self._watch, args=(stalled,), daemon=True)
        self.watching.start()

    def _watch(self, stalled: Callable[[], None]) -> None:
        moment, since = None, time.monotonic()
        with contextlib.suppress(dist.DistError):  # the store is gone: the job is at its end
            while not self.posted:
                if self.over.wait(LOOK):
                    return
                if self.store:
                    self.mine.add("beat", 1)
                    self.mine.set(f"state {self.rank}", json.dumps(self.log.state()))
                    self.others |= {rank: json.loads(self.mine.get(f"state {rank}")) for rank in range(self.size)
                                    if rank not in (self.rank, *self.others) and self.mine.check([f"state {rank}"])}
                if self.log.moment() != moment or self.log.position()["in"] == "spawn":  # its processes are watched
                    moment, since = self.log.moment(), time.monotonic()
                still = self.log.ended is None and time.monotonic() - since > self.timeout
                with self.posting:
                    if self.posted:
                        return
                    if self.store and still != self.still:
                        self.mine.add("still", 1 if still else -1)
                    self.still = still
                if still and (self.mine.add("still", 0) >= self.size if self.store else self.hangs_alone()):
                    return stalled()
                if self.store and self.mine.check(["asked"]):
                    self.asked = True  # perhaps this rank fails in the same way, or waits
                    self.wait(lambda: self.log.ended or self.log.inside, GRACE / 2)
                    self.post(self.mine)

    def hangs_alone(self) -> bool:
        """Without a store a rank knows of no other. It may wait for a late one, or for its own children."""
        return self.log.position()["in"] != "init_process_group" and not multiprocessing.active_children()

    def post(self, store: Any) -> None:
        with self.posting:
            if not self.posted and store:
                record = json.dumps(self.log.record()).encode()
                store.set(f"record {self.rank}", zlib.compress(record))
                store.add("posted", 1)
                store.add("still", int(not self.still))  # a rank at its end moves no more
            self.posted = True

    def collect(self, patient: bool) -> dict[int, Record] | None:
        """{rank: record} of all ranks if this rank is to report; else None, as soon as another has reported. Of a rank
        that was killed there is what it had written, or its last state alone.

        `patient`: this rank has ended well, so wait until all have posted, or until a rank that failed or stalled asks.
        """
        try:
            return self._collect(patient) if self.store else {self.rank: self.log.record()}
        except dist.DistError as error:  # the rank that kept the store has gone
            self.log.note("alone", error=str(error).partition("\n")[0][:200])
            left = {rank: left_by(state) for rank, state in self.others.items() if Path(state["path"]).exists()}
            return None if self.asked else {self.rank: self.log.record()} | left

    def _collect(self, patient: bool) -> dict[int, Record] | None:
        store, ranks = self.store, range(self.size)
        self.post(store)
        beat, since = 0, time.monotonic()  # of the watching threads of all ranks that have not posted
        while (patient and store.add("posted", 0) < len(ranks) and not store.check(["asked"]) and not self.hurried
               and time.monotonic() - since < self.timeout):
            if beat != (beat := store.add("beat", 0)):
                since = time.monotonic()
            time.sleep(0.1)
        if store.add("reporters", 1) > 1:
            self.wait(lambda: store.check(["reported"]), 2 * GRACE)
            return None
        store.set("asked", "")
        self.wait(lambda: store.add("posted", 0) >= len(ranks), GRACE)
        records = {rank: json.loads(zlib.decompress(store.get(f"record {rank}"))) for rank in ranks
                   if store.check([f"record {rank}"])}
        for rank in set(ranks) - set(records):  # of a rank that was killed on this machine the log is left
            if store.check([f"state {rank}"]):
                records[rank] = left_by(json.loads(store.get(f"state {rank}")))
        return records

    def end(self) -> None:
        """Leave, once this rank or another has the report in hand. The rank that keeps the store goes last. A daemon
        thread that is in a call of the store when Python ends would abort the process ("terminate called without an
        active exception"): it ends first."""
        self.over.set()
        if threading.current_thread() is not self.watching:
            self.watching.join(GRACE)
        Path(self.log.path).unlink(missing_ok=True)
        with contextlib.suppress(dist.DistError):
            if self.store:
                self.store.set("reported", "")
                gone = self.store.add("gone", 1)
                if self.hosts and gone < self.size:
                    self.wait(lambda: self.store.add("gone", 0) >= self.size, GRACE)

    def wait(self, until: Callable[[], Any], seconds: float) -> None:
        give_up = time.monotonic() + seconds
        while not until() and time.monotonic() < give_up:
            time.sleep(0.1)


def left_by(state: Record) -> Record:
    """What a rank that is gone has left: its last state, and its log if it was on this machine."""
    log = Path(state["path"])
    record = state | {"killed": True} | ({"events": events_of(log)} if log.exists() else {})
    log.unlink(missing_ok=True)
    return record
