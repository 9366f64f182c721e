"""What the driver tells the tasks of a batch, a part for each channel: with the job, or in a file.

What travels with the job goes to every task as it is, whoever it is for, and into Spark's event
log. So what is long is written to a file that is there for the time of the batch, and each task
reads its own part of it.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np

from braided.errors import CheckpointCorruptError
from braided.store.durable.store import Store
from braided.store.history.runs import digest_of

__all__ = ["ShippedParts", "ship_parts"]

_LONG_BYTES = 1 << 17


class _PartRange(msgspec.Struct, frozen=True, array_like=True):
    """Where in the file the part of a channel is."""

    start: int
    size: int
    digest: str


class ShippedParts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parts of all channels; all of it, or where to read it."""

    packed: list[bytes] = []
    """By channel."""
    file: str = ""
    parts: list[_PartRange] = []
    """Of the file, by channel."""

    def part(self, files: Store, channel: int, what: str) -> bytes:
        """The part of a channel; `what` says what is in it, should it be unreadable."""
        if not self.file:
            return self.packed[channel]
        part = self.parts[channel]
        try:
            [data] = files.get_ranges(self.file, [(part.start, part.size)])
        except OSError as error:
            raise CheckpointCorruptError(
                f"{files.path(self.file)}, which says {what}, can't be read ({error}). It is there "
                "for the time of a batch only: see to it that nobody else removes files there; the "
                "batch runs again at the next start"
            ) from error
        if digest_of(data) != part.digest:
            raise CheckpointCorruptError(
                f"{files.path(self.file)}, which says {what}, is damaged: its checksum does not "
                "match. The batch that wrote it is not committed, and writes another at the next "
                "start"
            )
        return bytes(data.to_pybytes())


_Shipped = TypeVar("_Shipped", bound=ShippedParts)


def ship_parts(kind: type[_Shipped], files: Store, path: str, packed: list[bytes]) -> _Shipped:
    """What is shipped of the parts; it is in a file of that name if it is long."""
    if sum(map(len, packed)) < _LONG_BYTES:
        return kind(packed)
    starts = np.cumsum([0, *map(len, packed)]).tolist()
    files.put(path, b"".join(packed))
    parts = zip(starts[:-1], packed, strict=True)
    return kind([], path, [_PartRange(at, len(data), digest_of(data)) for at, data in parts])
