"""Spark's own record of a query: what each batch is, and which ones are done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from braided.errors import CheckpointCorruptError, CheckpointMismatchError
from braided.store.durable.files import UNREADABLE

__all__ = ["BatchTimes", "SparkLog"]


class _OffsetMetadata(msgspec.Struct):
    batchWatermarkMs: int = 0
    batchTimestampMs: int = 0


@dataclass(frozen=True)
class BatchTimes:
    """When a batch is, the same in every replay of it."""

    batch_time_ms: int
    watermark_ms: int


class SparkLog:
    """Spark's own record of a query: offsets before a batch, commits after it."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint

    def last_commit(self) -> int | None:
        return self._newest("commits")

    def last_offset(self) -> int | None:
        return self._newest("offsets")

    def times(self, batch: int) -> BatchTimes:
        path = self._checkpoint / "offsets" / str(batch)
        try:
            line = path.read_text().split("\n")[1]
            found = msgspec.json.decode(line, type=_OffsetMetadata)
        except (OSError, IndexError, *UNREADABLE) as error:
            raise CheckpointCorruptError(
                f"Spark's offsets of batch {batch} ({path}): {error}"
            ) from None
        return BatchTimes(found.batchTimestampMs, found.batchWatermarkMs)

    def rows(self, batch: int) -> int | None:
        """The rows that a batch took in, where all sources have offsets that count them."""
        before, after = (self._positions(number) for number in (batch - 1, batch))
        if not before or not after or len(before) != len(after):
            return None
        counts = [(_counted(old), _counted(new)) for old, new in zip(before, after, strict=True)]
        if any(old is None or new is None for old, new in counts):
            return None
        return sum(max(0, new - old) for old, new in counts if old is not None and new is not None)

    def tick(self, batch: int) -> int:
        """Where our own source, the last of all, was when a batch began; -1 before its first."""
        path = self._checkpoint / "offsets" / str(batch)
        try:
            last = path.read_text().strip("\n").split("\n")[-1]
            return -1 if last == "-" else int(last)
        except (OSError, ValueError) as error:
            raise CheckpointMismatchError(
                "another query has begun here, or an older version of Braided: the sources in "
                f"{path} do not end with the one that Braided adds ({error}). Use a new "
                "checkpointLocation"
            ) from None

    def had_input(self, batch: int) -> bool:
        """Whether a batch took anything in; True where that can't be told any more."""
        before, after = (self._positions(number) for number in (batch - 1, batch))
        return before is None or before != after

    def _positions(self, batch: int) -> list[str] | None:
        """Where the sources are, but for the tick, which is the last of them."""
        try:
            text = (self._checkpoint / "offsets" / str(batch)).read_text()
        except OSError:
            return None
        return text.strip("\n").split("\n")[2:-1]

    def _newest(self, directory: str) -> int | None:
        where = self._checkpoint / directory
        if not where.is_dir():
            return None
        return max((int(p.name) for p in where.iterdir() if p.name.isdigit()), default=None)


def _counted(position: str) -> int | None:
    """The sum of offsets by topic and partition, as Kafka has them; None for any others."""
    try:
        topics = msgspec.json.decode(position, type=dict[str, dict[str, int]])
    except msgspec.MsgspecError:
        return None
    return sum(offset for partitions in topics.values() for offset in partitions.values())
