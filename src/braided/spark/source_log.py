"""What Spark's sources of files note: which files they have taken, entry by entry.

A source writes `sources/<i>/<n>` when a batch is planned, and every so often `<n>.compact`, which
has the lines of all entries before as well. At a start Spark believes what it finds: a file that is
in no entry is new. In an object store an entry can be replaced: the write of a driver that stood
still, or was held up on its way, may come long after another has taken over, written the same entry
with other files in it, and committed them. They would be read again.

Who can do that, and to what? A driver plans one batch at a time and looks at its lease before it
runs it, so that after it was taken over from it writes one entry at most: the one after the newest
that was there then. For who comes next that is its own first entry. So each start has a few entries
that are *exposed*: those that were not committed when it looked, and the next ones. Copies are kept
of them (`store/history/source_entries.py`), and the next start puts back what differs: the entry
itself, or its lines in the newest compacted one, which may have been made of what was replaced. All
other entries cost nothing.

A frame that a query reads several times is one source to Spark, with one log, and has its place
among the offsets each time. So which log a place has is asked of the plan (`source_numbers`).

They are read when the batch is admitted, a moment after Spark has read them for the batch: what
comes between the two is taken for what the batch has read, and is the one late write that is not
noticed.

Copies are needed until a compacted entry comes after them that is not exposed itself: it was
checked with them at a start, nobody replaces it, and Spark looks at nothing before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from braided.store.durable.store import Store

__all__ = [
    "Entry",
    "SourceLog",
    "files_by_entry",
    "positions",
    "source_numbers",
    "with_entries",
]

Entry = tuple[int, int]
"""The number of a source among the query's, and that of an entry in its log."""

_DIRECTORY, _COMPACT = "sources", ".compact"
_AHEAD = 2
"""Entries after the newest one at a start that others may write: one, and one to spare."""


class _FileOffset(msgspec.Struct):
    """Where a source of files is: an entry of its own log."""

    logOffset: int


class _File(msgspec.Struct):
    """A line of an entry: a file, and the entry that took it."""

    batchId: int


_decode_file = msgspec.json.Decoder(_File).decode


class SourceLog:
    """The logs of a query's sources, as they were when it started."""

    def __init__(self, checkpoint: Store, offsets: str = "", numbers: Sequence[int] = ()) -> None:
        """Looks before Spark opens them; `offsets` are those of the newest committed batch,
        `numbers` are those of the sources.
        """
        self._checkpoint = checkpoint
        self._numbers = numbers
        self._committed = positions(offsets, numbers)
        self._absent: set[Entry] = set()
        self._plain: dict[int, set[int]] = defaultdict(set)
        self._compacted: dict[int, set[int]] = defaultdict(set)
        for name in checkpoint.list(_DIRECTORY):
            source, _, last = name.removeprefix(f"{_DIRECTORY}/").partition("/")
            number = last.removesuffix(_COMPACT)
            if source.isdigit() and number.isdigit():
                found = self._plain if number == last else self._compacted
                found[int(source)].add(int(number))

    def restore(self, kept: Mapping[Entry, str]) -> list[str]:
        """Puts back what is not as it was committed; the names of what was written. What is missing
        is not made up.
        """
        restored = []
        for source in sorted({source for source, _ in kept}):
            lines = {entry: text for (of, entry), text in kept.items() if of == source}
            compacted = max(self._compacted[source], default=-1)
            files = {
                f"{entry}": [entry]
                for entry in self._plain[source] & lines.keys()
                if entry > compacted
            }
            if compacted >= 0:
                files[f"{compacted}{_COMPACT}"] = [e for e in lines if e <= compacted]
            for name, entries in sorted(files.items()):
                if self._mend(source, name, {entry: lines[entry] for entry in entries}):
                    restored.append(f"{_DIRECTORY}/{source}/{name}")
        return restored

    def exposed(self, offsets: str, kept: Collection[Entry]) -> dict[Entry, str]:
        """Of the entries that a batch stands on, those that others may still replace and of which
        no copy is kept: their lines.
        """
        texts = {}
        for source, position in positions(offsets, self._numbers).items():
            for entry in range(self._committed.get(source, -1) + 1, position + 1):
                if entry > self._newest(source) + _AHEAD:
                    break
                if (source, entry) in kept or (source, entry) in self._absent:
                    continue
                text = self._read(source, entry)
                if text is None:
                    self._absent.add((source, entry))
                else:
                    texts[source, entry] = text
        return texts

    def is_needed(self, source: int, entry: int, kept: Collection[Entry]) -> bool:
        """Whether the copy of an entry is, beside the others that are kept."""
        compacted = max(self._compacted[source], default=-1)
        settled = compacted <= self._committed.get(source, -1) and (source, compacted) not in kept
        return entry >= compacted or not settled

    def _newest(self, source: int) -> int:
        return max(self._plain[source] | self._compacted[source], default=-1)

    def _read(self, source: int, entry: int) -> str | None:
        """The lines of an entry; None where a source keeps no such log."""
        for name in (f"{entry}", f"{entry}{_COMPACT}"):
            try:
                text = self._get(source, name)
            except FileNotFoundError:
                continue
            return files_by_entry(text).get(entry, "")
        return None

    def _mend(self, source: int, name: str, lines: Mapping[int, str]) -> bool:
        text = self._get(source, name)
        mended = with_entries(text, lines)
        if mended == text:
            return False
        # Hadoop's checksum of what was there would make it refuse what is there now.
        self._checkpoint.delete([f"{_DIRECTORY}/{source}/.{name}.crc"])
        self._checkpoint.put(f"{_DIRECTORY}/{source}/{name}", mended.encode())
        return True

    def _get(self, source: int, name: str) -> str:
        data = self._checkpoint.get(f"{_DIRECTORY}/{source}/{name}")
        return bytes(data).decode(errors="replace")


def positions(offsets: str, numbers: Sequence[int] = ()) -> dict[int, int]:
    """The newest entry of each source that has a log of files, by a batch's offsets.

    `numbers` are those of the sources, one for each offset but the last, which is that of the tick;
    without, or if these are offsets of other sources, each has its own.
    """
    lines = offsets.strip("\n").split("\n")[2:]
    if len(numbers) != len(lines) - 1:
        numbers = range(len(lines))
    found = {}
    for source, position in zip(numbers, lines, strict=False):
        try:
            found[source] = msgspec.json.decode(position, type=_FileOffset).logOffset
        except msgspec.MsgspecError:
            continue  # another kind, or nothing yet
    return found


def source_numbers(frame: DataFrame) -> list[int]:
    """The number by which Spark knows each source of a streaming frame, in the order of offsets;
    one that is read several times has the same each time.
    """
    leaves: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    distinct: list[Any] = []
    numbers = []
    for leaf in (leaves.apply(number) for number in range(leaves.size())):
        # What refers to a WITH is a leaf as well, and no source.
        if not str(leaf.nodeName()).startswith("Streaming"):
            continue
        known = (number for number, other in enumerate(distinct) if other.equals(leaf))
        number = next(known, len(distinct))
        if number == len(distinct):
            distinct.append(leaf)
        numbers.append(number)
    return numbers


def files_by_entry(text: str) -> dict[int, str]:
    """The lines of a file of the log, by the entry that they belong to, in its order."""
    lines: dict[int, list[str]] = {}
    for line in text.split("\n")[1:]:
        try:
            lines.setdefault(_decode_file(line).batchId, []).append(line)
        except (msgspec.MsgspecError, UnicodeEncodeError):
            continue  # cut off: of no entry
    return {entry: "\n".join(some) for entry, some in lines.items()}


def with_entries(text: str, lines: Mapping[int, str]) -> str:
    """A file of the log with some entries as they should be; as it is, if they are."""
    found = files_by_entry(text)
    if all(found.get(entry, "") == some for entry, some in lines.items()):
        return text
    found.update(lines)
    return "\n".join([_version(text), *_in_order(found)])


def _in_order(lines: Mapping[int, str]) -> Iterable[str]:
    return (lines[entry] for entry in sorted(lines) if lines[entry])


def _version(text: str) -> str:
    first = text.partition("\n")[0]
    return first if first.startswith("v") else "v1"
