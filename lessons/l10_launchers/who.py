"""A rank that trains nothing: it reports on which host it is, who started it, and what each of them has told it.

    torchrun --nproc_per_node=2 lessons/l10_launchers/who.py

It stands in the place of mine/train.py where lesson 10 asks how ranks were started. It prints JSON, in pieces.
"""

import contextlib
import json
import os
import re
import socket
import sys

import psutil

PIECE = re.compile(r"(\S+/\d+) (\d+) (.+)$")
FIVE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment(process):
    """Its variables, without folders and users: those of Slurm, and what a rank needs."""
    return {name: value for name, value in process.environ().items() if name in FIVE or name.startswith("SLURM_")}


def reports(console):
    """The reports of who.py in what ranks have printed, in the order of the ranks; and the last other line."""
    pieces, other = {}, ["nothing"]
    for line in console.strip().splitlines():
        if piece := PIECE.search(line):
            pieces.setdefault(piece[1], []).append((int(piece[2]), piece[3]))
        else:
            other.append(line)
    found = [json.loads("".join(text for _, text in sorted(of_rank))) for of_rank in pieces.values()]
    return sorted(found, key=lambda each: int(each["rank"].get("RANK", 0))), other[-1]


def main():
    me, parent = psutil.Process(), psutil.Process().parent()
    script = None
    for each in psutil.process_iter(["name"]):
        if each.info["name"] == "slurm_script":
            with contextlib.suppress(psutil.Error):  # another user's, or it has just ended
                if each.environ().get("SLURM_JOB_ID") == os.environ.get("SLURM_JOB_ID"):
                    script = environment(each)
    report = {"host": socket.gethostname(), "words": sys.argv[1:], "pid": me.pid, "parent": parent.pid,
              "asked": [word for word in parent.cmdline() if word.startswith("--")],  # torchrun's options
              "rank": environment(me), "launcher": environment(parent), "script": script}
    text = json.dumps(report)
    for start in range(0, len(text), 800):  # ranks share the output, and srun cuts lines of more than 1,024 characters
        os.write(1, f"{report['host']}/{me.pid} {start} {text[start:start + 800]}\n".encode())


if __name__ == "__main__":
    main()
