"""How the ranks put their diaries together: through the store that torchrun keeps, or one of rank 0's own."""

import contextlib
import json
import os
import threading
import time
import zlib
from datetime import timedelta

import torch.distributed as dist

LOOK = 0.3  # seconds between two looks at the store
GRACE = 5  # seconds for the others' diaries, once the first rank has asked for them


class Exchange:
    """One rank's part. `diary` is posted once; whoever reports waits for the others' so long and no longer."""

    def __init__(self, diary, timeout):
        self.diary, self.timeout = diary, timeout
        self.posting = threading.Lock()
        self.posted = False
        self.store = None
        if diary.world_size > 1:
            hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's: all ranks are its clients
            port = int(os.environ["MASTER_PORT"]) + (0 if hosted else 1)
            store = dist.TCPStore(os.environ["MASTER_ADDR"], port, None, diary.rank == 0 and not hosted,
                                  timedelta(seconds=60), wait_for_workers=False)
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            self.store = dist.PrefixStore(f"doctor {attempt}", store)
            self.mine = dist.PrefixStore(f"doctor {attempt}", store.clone())  # the watching thread's own connection

    def watch(self, stalled):
        """A thread that calls `stalled()` where nothing has moved for the timeout, and posts when others ask."""
        threading.Thread(target=self._watch, args=(stalled,), daemon=True).start()

    def _watch(self, stalled):
        with contextlib.suppress(dist.DistError):  # the store is gone: the job is at its end
            while not self.posted:
                time.sleep(LOOK)
                if self.diary.ended is None and time.monotonic() - self.diary.alive > self.timeout:
                    return stalled()
                if self.store and self.mine.check(["asked"]):
                    self.post(self.mine)

    def post(self, store):
        with self.posting:
            if not self.posted and store:
                store.set(f"diary {self.diary.rank}", zlib.compress(json.dumps(self.diary.pages()).encode()))
                store.add("posted", 1)
            self.posted = True

    def collect(self, patient):
        """The diaries of all ranks, by rank, if it is on this rank to report; else None, once another has reported.

        `patient`: this rank has ended well, so wait for the others until one has asked (it failed, or stalled).
        """
        if not self.store:
            return {0: self.diary.pages()}
        store, ranks = self.store, range(self.diary.world_size)
        self.post(store)
        while patient and store.add("posted", 0) < len(ranks) and not store.check(["asked"]):
            time.sleep(LOOK)
        if store.add("reporters", 1) > 1:
            give_up = time.monotonic() + 2 * GRACE
            while not store.check(["reported"]) and time.monotonic() < give_up:
                time.sleep(0.1)
            return None
        store.set("asked", "")
        give_up = time.monotonic() + GRACE
        while store.add("posted", 0) < len(ranks) and time.monotonic() < give_up:
            time.sleep(0.1)
        return {rank: json.loads(zlib.decompress(store.get(f"diary {rank}"))) for rank in ranks
                if store.check([f"diary {rank}"])}

    def reported(self):
        if self.store:
            self.store.set("reported", "")
