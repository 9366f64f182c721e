"""Spark's record of a query in its checkpoint: what each batch is, and which are done.

Spark does not sync what it writes there, and a manifest is synced: after a power cut, manifests may
know of batches that Spark does not. So a manifest keeps the text of its batch's offsets, and what
Spark lacks is written again before it looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from braided.errors import CheckpointCorruptError, CheckpointMismatchError
from braided.store.durable.local_store import LocalStore, sync_new_files
from braided.store.durable.store import UNREADABLE, Store

__all__ = ["BatchTimes", "SparkLog"]

_OFFSETS, _COMMITS = "offsets", "commits"
_REMEMBERED = 3
"""Texts kept: of the batch that runs, the one before it, and one to spare."""


class _FileOffset(msgspec.Struct):
    """Where a source of files is: an entry of its own log."""

    logOffset: int


class _OffsetMetadata(msgspec.Struct):
    batchWatermarkMs: int = 0
    batchTimestampMs: int = 0


@dataclass(frozen=True)
class BatchTimes:
    """When a batch is, the same in every replay of it."""

    batch_time_ms: int
    watermark_ms: int


class SparkLog:
    """The logs that Spark writes: offsets before a batch, commits after it."""

    def __init__(self, checkpoint: Store) -> None:
        self._checkpoint = checkpoint
        self._texts: dict[int, str] = {}
        self._synced: frozenset[str] = frozenset()

    def last_commit(self) -> int | None:
        return self._newest(_COMMITS)

    def last_offset(self) -> int | None:
        return self._newest(_OFFSETS)

    def offsets(self, batch: int) -> str:
        """What Spark has written of a batch before running it; it is read once."""
        if batch not in self._texts:
            try:
                text = self._checkpoint.get(_entry(batch)).to_pybytes().decode()
            except (OSError, UnicodeDecodeError) as error:
                raise CheckpointCorruptError(
                    f"Spark's offsets of batch {batch} "
                    f"({self._checkpoint.path(_entry(batch))}): {error}"
                ) from None
            self._texts[batch] = text
            while len(self._texts) > _REMEMBERED:
                del self._texts[min(self._texts)]
        return self._texts[batch]

    def restore(self, texts: Mapping[int, str]) -> list[int]:
        """Writes the entries of batches that are missing or say something else; says which."""
        restored = []
        for batch, text in sorted(texts.items()):
            try:
                if self.offsets(batch) == text:
                    continue
            except CheckpointCorruptError:
                pass
            name = _entry(batch)
            # Hadoop's checksum of what was there would make it refuse what is there now.
            self._checkpoint.delete([f"{_OFFSETS}/.{batch}.crc"])
            self._checkpoint.put(name, text.encode())
            self._texts.pop(batch, None)
            restored.append(batch)
        return restored

    def forget(self, batch: int) -> None:
        """Removes the entry of a batch that was never run to its end, for Spark to plan it anew."""
        self._checkpoint.delete([_entry(batch), f"{_OFFSETS}/.{batch}.crc"])
        self._texts.pop(batch, None)

    def is_torn(self, batch: int, before: str) -> bool:
        """Whether the entry of a batch is there in part only, as a power cut leaves files; the
        one before it shows how long it should be.
        """
        try:
            text = self._checkpoint.get(_entry(batch)).to_pybytes().decode(errors="replace")
        except FileNotFoundError:
            return False
        return "\0" in text or text.count("\n") < before.count("\n")

    def lost_sources(self, offsets: str) -> list[str]:
        """Sources that keep a log of their own, and have lost what a batch's offsets name."""
        lost = []
        for number, position in enumerate(offsets.strip("\n").split("\n")[2:]):
            try:
                entry = msgspec.json.decode(position, type=_FileOffset).logOffset
            except msgspec.MsgspecError:
                continue
            if entry >= 0 and (self._newest(f"sources/{number}") or 0) < entry:
                lost.append(self._checkpoint.path(f"sources/{number}"))
        return lost

    def sync_sources(self) -> None:
        """Makes durable what sources have written since the last time, where Spark does not."""
        if isinstance(self._checkpoint, LocalStore):
            self._synced = sync_new_files(self._checkpoint.directory / "sources", self._synced)

    def times(self, batch: int) -> BatchTimes:
        try:
            line = self.offsets(batch).split("\n")[1]
            found = msgspec.json.decode(line, type=_OffsetMetadata)
        except (IndexError, *UNREADABLE) as error:
            raise CheckpointCorruptError(
                f"Spark's offsets of batch {batch} ({self._checkpoint.path(_entry(batch))}): "
                f"{error}"
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
        try:
            last = self.offsets(batch).strip("\n").split("\n")[-1]
            return -1 if last == "-" else int(last)
        except ValueError as error:
            raise CheckpointMismatchError(
                "another query has begun here, or an older version of Braided: the sources in "
                f"{self._checkpoint.path(_entry(batch))} do not end with the one that Braided adds "
                f"({error}). Use a new checkpointLocation"
            ) from None

    def had_input(self, batch: int) -> bool:
        """Whether a batch took anything in; True where that can't be told any more."""
        before, after = (self._positions(number) for number in (batch - 1, batch))
        return before is None or before != after

    def _positions(self, batch: int) -> list[str] | None:
        """Where the sources are, but for the tick, which is the last of them."""
        if batch < 0:
            return None
        try:
            text = self.offsets(batch)
        except CheckpointCorruptError:
            return None
        return text.strip("\n").split("\n")[2:-1]

    def _newest(self, directory: str) -> int | None:
        names = (name.rpartition("/")[2] for name in self._checkpoint.list(directory))
        numbers = (name.removesuffix(".compact") for name in names)
        return max((int(number) for number in numbers if number.isdigit()), default=None)


def _entry(batch: int) -> str:
    return f"{_OFFSETS}/{batch}"


def _counted(position: str) -> int | None:
    """The sum of offsets by topic and partition, as Kafka has them; None for any others."""
    try:
        topics = msgspec.json.decode(position, type=dict[str, dict[str, int]])
    except msgspec.MsgspecError:
        return None
    return sum(offset for partitions in topics.values() for offset in partitions.values())
