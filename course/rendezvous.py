"""Where ranks meet: a free port, and the variables that lead them there. It imports no torch."""

import contextlib
import random
import socket

# of the variables that a launcher sets
MEANING = {
    "RANK": "rank: number in the job", "LOCAL_RANK": "local rank: number on this node",
    "WORLD_SIZE": "processes in the job", "LOCAL_WORLD_SIZE": "processes on this node",
    "GROUP_RANK": "group rank: number of the node", "GROUP_WORLD_SIZE": "nodes",
    "MASTER_ADDR": "where all ranks meet: the host …", "MASTER_PORT": "… and the port"}


def free_port() -> int:
    """A TCP port that nobody listens on at the moment, and that the system gives to no process that asks for any port:
    Linux gives those from 32768 on, macOS from 49152. OSError where a hundred are taken."""
    for port in random.SystemRandom().sample(range(20_000, 32_768), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError("no free port was found between 20000 and 32767")
