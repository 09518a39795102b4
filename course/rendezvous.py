"""Where ranks meet: a free port. It imports no torch."""

import contextlib
import random
import socket


def free_port() -> int:
    """A TCP port that nobody listens on at the moment, and that the system gives to no process that asks for any port:
    Linux gives those from 32768 on, macOS from 49152. OSError where a hundred are taken."""
    for port in random.SystemRandom().sample(range(20_000, 32_768), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError("no free port was found between 20000 and 32767")
