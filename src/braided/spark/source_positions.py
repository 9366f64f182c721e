"""How far the sources of a query have come, in words: for who starts others from there.

Spark's offsets are for the source that wrote them. What a source of files has read is only a number
in them, that of an entry of its own log; the names of the files are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from braided.spark.source_log import files_by_entry
from braided.store.durable.store import Store

__all__ = ["positions_told"]

_SHOWN = 10
"""Of the files of a source, the newest: a query may have read a million."""


def positions_told(checkpoint: Store, batch: int) -> list[str]:
    """A line or more for each source, of what it had given out with a batch."""
    try:
        offsets = checkpoint.get(f"offsets/{batch}").to_pybytes().decode()
    except FileNotFoundError:
        return []
    positions = offsets.rstrip("\n").split("\n")[2:]
    logs = checkpoint.directories("sources")
    # One that is read several times has several positions and one log: which, its query knows.
    of_files = {n for n, position in enumerate(positions) if _is_entry(_decoded(position))}
    has_logs = {f"sources/{number}" for number in of_files} <= set(logs)
    lines: list[str] = []
    for number, position in enumerate(positions):
        lines += _told(checkpoint, number, position, has_logs)
    return lines


def _is_entry(offset: Any) -> bool:
    """Whether it is that of a source of files."""
    return isinstance(offset, dict) and set(offset) == {"logOffset"}


def _told(checkpoint: Store, number: int, position: str, has_logs: bool) -> Iterator[str]:
    source = f"source {number}"
    offset = _decoded(position)
    if offset is None:
        yield f"{source}: nothing yet"
    elif _is_entry(offset):
        files = _files(checkpoint, number, int(offset["logOffset"])) if has_logs else []
        yield f"{source}: {len(files)} files, the newest last" if files else f"{source}: {position}"
        if len(files) > _SHOWN:
            yield f"  ... {len(files) - _SHOWN} before"
        yield from (f"  {file}" for file in files[-_SHOWN:])
    elif isinstance(offset, dict) and all(isinstance(each, dict) for each in offset.values()):
        for topic, partitions in offset.items():
            ends = ", ".join(f"{p} to offset {end}" for p, end in sorted(partitions.items()))
            yield f"{source}: topic {topic}, partition {ends} (not included)"
        yield f"  as an option: startingOffsets {position}"
    else:
        yield f"{source}: {position}"


def _decoded(position: str) -> Any:
    """The offset, None where the source has not begun; one that is no JSON is left as it is."""
    if position == "-":
        return None
    try:
        return msgspec.json.decode(position)
    except msgspec.MsgspecError:
        return position


def _files(checkpoint: Store, number: int, entry: int) -> list[str]:
    """The paths of the files that a source had taken up to an entry of its log, in that order."""
    found: dict[int, str] = {}
    for name in checkpoint.list(f"sources/{number}"):
        last = name.rpartition("/")[2]
        if last.removesuffix(".compact").isdigit():
            found.update(files_by_entry(bytes(checkpoint.get(name)).decode(errors="replace")))
    lines = [line for at in sorted(found) if at <= entry for line in found[at].split("\n") if line]
    return [str(msgspec.json.decode(line)["path"]) for line in lines]
