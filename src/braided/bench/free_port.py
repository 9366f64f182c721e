"""A port of this machine's that a server may have.

A server binds the port some time after somebody chose it, a broker in Java seconds after. Ports
that the kernel gives to connections on their way out, 32768 and up on Linux, may have gone by then
where much is going on; so none of those is chosen, and a choice is by chance.
"""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]

_PORTS = range(15_000, 32_000)
_TRIES = 100


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    chance = random.SystemRandom()
    for _ in range(_TRIES):
        port = chance.choice(_PORTS)
        try:
            socket.create_server((host, port)).close()
        except OSError:
            continue
        return port
    raise OSError(f"of {_TRIES} ports of {host} none was free")
