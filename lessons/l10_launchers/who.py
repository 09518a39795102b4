"""A rank that trains nothing: it reports on which host it is, who started it, and what each of them has told it.

    torchrun --nproc_per_node=2 lessons/l10_launchers/who.py

It stands in the place of mine/train.py where lesson 10 asks how ranks were started. It prints one line of JSON.
"""

import json
import os
import socket
import sys

import psutil

FIVE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def environment(process):
    """Its variables, without folders and users: those of Slurm, and what a rank needs."""
    return {name: value for name, value in process.environ().items() if name in FIVE or name.startswith("SLURM_")}


def reports(console):
    """The reports of who.py in what ranks have printed, in the order of the ranks; and the last other line."""
    lines = console.strip().splitlines()
    found = [json.loads(line) for line in lines if line.startswith('{"host"')]
    other = [line for line in lines if not line.startswith('{"host"')] or ["nothing"]
    return sorted(found, key=lambda each: int(each["rank"].get("RANK", 0))), other[-1]


def main():
    me, parent = psutil.Process(), psutil.Process().parent()
    script = next((each for each in psutil.process_iter() if each.name() == "slurm_script"), None)
    report = {"host": socket.gethostname(), "words": sys.argv[1:], "pid": me.pid, "parent": parent.pid,
              "asked": [word for word in parent.cmdline() if word.startswith("--")],  # torchrun's options
              "rank": environment(me), "launcher": environment(parent), "script": script and environment(script)}
    os.write(1, f"{json.dumps(report)}\n".encode())  # in one piece: ranks share the output


if __name__ == "__main__":
    main()
