"""Spark's record of a query in its checkpoint: what each batch is, and which are done.

Spark does not sync what it writes there, and a manifest is synced: after a power cut, manifests may
know of batches that Spark does not. So a manifest keeps the text of its batch's offsets, and what
Spark lacks is written again before it looks.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from braided.errors import CheckpointCorruptError, CheckpointMismatchError
from braided.spark.source_log import positions
from braided.store.durable.local_store import LocalStore, sync_new_files
from braided.store.durable.store import UNREADABLE, Store

__all__ = ["BatchTimes", "SparkLog"]

_OFFSETS, _COMMITS, _METADATA = "offsets", "commits", "metadata"
_SHORTEST = "v1\n{}\n-"
"""An entry of the fewest lines: version, times, and our own source alone."""
_TICK = re.compile(r"-|-?[0-9]+")
_COMMIT = re.compile(rb"v[0-9]+\n\{.*\}", re.DOTALL)
_REMEMBERED = 3
"""Texts kept: of the batch that runs, the one before it, and one to spare."""


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

    def __init__(self, checkpoint: Store, numbers: Sequence[int] = ()) -> None:
        """`numbers` are those of the query's sources, where their logs matter."""
        self._checkpoint = checkpoint
        self._numbers = numbers
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

    def is_torn(self, batch: int, before: str | None = None) -> bool:
        """Whether the entry of a batch is there in part only, as a power cut leaves files; the
        one before it shows how many lines it should have, of which our own source has the last.
        """
        try:
            text = bytes(self._checkpoint.get(_entry(batch))).decode(errors="replace")
        except FileNotFoundError:
            return False
        lines = (before or _SHORTEST).rstrip("\n").count("\n")
        missing = lines - text.rstrip("\n").count("\n")
        if "\0" in text or missing > 0:
            return True
        return before is not None and not missing and not _TICK.fullmatch(text.rpartition("\n")[2])

    def mend(self) -> list[str]:
        """Removes what a power cut has left empty or cut off of Spark's own files: that a batch is
        done, which is found out again. The name of the query, which it wants to see, is made anew.
        """
        if not isinstance(self._checkpoint, LocalStore):
            return []  # objects appear whole
        commits = [n for n in self._checkpoint.list(_COMMITS) if n.rpartition("/")[2].isdigit()]
        torn = [name for name in commits if not _COMMIT.match(bytes(self._checkpoint.get(name)))]
        if self.last_offset() is not None and not self._has_name():
            torn.append(_METADATA)
        for name in torn:
            directory, slash, last = name.rpartition("/")
            self._checkpoint.delete([name, f"{directory}{slash}.{last}.crc"])
            if name == _METADATA:
                self._checkpoint.put(name, msgspec.json.encode({"id": str(uuid.uuid4())}))
        return torn

    def _has_name(self) -> bool:
        try:
            msgspec.json.decode(self._checkpoint.get(_METADATA), type=dict[str, str])["id"]
        except (FileNotFoundError, KeyError, *UNREADABLE):
            return False
        return True

    def lost_sources(self, offsets: str) -> list[str]:
        """Sources that keep a log of their own, and have lost what a batch's offsets name."""
        lost = []
        for number, entry in positions(offsets, self._numbers).items():
            newest = self._newest(f"sources/{number}")
            if (-1 if newest is None else newest) < entry:
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

    def sources(self, batch: int) -> int | None:
        """How many sources a batch has, but for the tick; None if its offsets do not say."""
        version, *lines = self.offsets(batch).strip("\n").split("\n")
        return len(lines) - 2 if version == "v1" else None

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
