"""A process that check.launch lets the learner's launcher start as a rank, many times.

    acting.py FOLDER END…    the end of each rank: its exit status, "killed", or "hangs"

It leaves a file of its variables in FOLDER, waits there for the other ranks, and ends as it is told to. It imports
nothing that takes time.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

MEETING, HANG = 2, 4  # seconds: to wait for the others; until a rank that hangs comes to an end of its own
FROM_CALLER = "COURSE_FROM_CALLER"  # a variable of the launcher's own environment
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", FROM_CALLER)


def main():
    folder, ends = Path(sys.argv[1]), sys.argv[2:]
    mine = {name: os.environ.get(name) for name in VARIABLES} | {"met": False, "own end": False}
    file = folder / f"{os.getpid()}.json"

    def note(**changes):
        mine.update(changes)
        file.with_suffix(".new").write_text(json.dumps(mine))
        file.with_suffix(".new").replace(file)  # whole, whenever this process is ended

    note()
    give_up = time.monotonic() + MEETING
    while len(list(folder.glob("*.json"))) < len(ends):
        if time.monotonic() > give_up:
            sys.exit("the others did not come")
        time.sleep(0.02)
    note(met=True)
    rank = mine["RANK"] or ""
    end = ends[int(rank)] if rank.isdigit() and int(rank) < len(ends) else "0"
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "hangs":
        time.sleep(HANG)
        note(**{"own end": True})
        end = "0"
    sys.exit(int(end))


if __name__ == "__main__":
    main()
