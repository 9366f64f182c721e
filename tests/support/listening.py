"""At which addresses processes listen, as the kernel has it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

__all__ = ["Address", "listening_at"]

Address = IPv4Address | IPv6Address
_LISTENS = "0A"


def listening_at(pids: Iterable[int]) -> set[Address]:
    """The addresses of all TCP ports at which any of these processes can be reached."""
    sockets: set[str] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):  # it was closed
                    sockets.add(str(entry.readlink()))
    found: set[Address] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == _LISTENS and f"socket:[{inode}]" in sockets:
                found.add(_address(bytes.fromhex(local.partition(":")[0])))
    return found


def _address(raw: bytes) -> Address:
    """The kernel writes words of four bytes, each as this machine has it in memory."""
    words = [raw[start : start + 4][::-1] for start in range(0, len(raw), 4)]
    if len(words) == 1:
        return IPv4Address(words[0])
    address = IPv6Address(b"".join(words))
    return address.ipv4_mapped or address
