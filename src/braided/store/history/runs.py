"""Runs: durable files of slot changes. A changelog and a snapshot are the same thing on disk.

A run is rows of (slot, key, value), slots ascending, with an index at its end (`run_blocks.py`). A
changelog run holds what one task changed in one batch; a snapshot run holds everything that some
slots contained, and so restarts their chains. Its name says which (`.log.run`, `.snap.run`) and its
digest, of the index, is what the manifest records and what the cache calls a version by. Runs that
end in `.arrow` are those of earlier versions (`arrow_runs.py`), with the digest of the whole file.

A digest must name one history only. Two batches that change the same keys to the same values would
have equal contents, so a changelog carries the digests of the versions it builds on (`base`): its
digest commits to them, theirs to the ones before, and no two histories share one. The attempt is
left out: two attempts that do the same thing to the same state have the same digest.

A small run is read whole, in one go. Of a large one the index is read, and then what the wanted
slots have there, a few megabytes at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator

import msgspec
import pyarrow as pa

from braided.errors import CheckpointCorruptError, CheckpointReadError
from braided.store.durable.store import UNREADABLE, Store
from braided.store.history.arrow_runs import read_arrow
from braided.store.history.run_blocks import (
    Block,
    Changes,
    Index,
    RunPieces,
    digest_bytes,
    read_block,
    read_index,
)
from braided.store.history.slot_sets import decode_slots, encode_slots

__all__ = [
    "LOG_SUFFIX",
    "SNAP_SUFFIX",
    "RunFile",
    "batch_of",
    "digest_of",
    "read_checked",
    "read_run",
    "slots_of",
    "write_changelog",
    "write_run",
    "write_snapshot",
]

LOG_SUFFIX = ".log.run"
SNAP_SUFFIX = ".snap.run"

_READ_WHOLE_BYTES = 1 << 18
_READ_TOGETHER_BYTES = 1 << 22


class RunFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A durable run as the manifest records it."""

    name: str
    digest: str
    bytes: int
    slots: str
    """As `encode_slots` writes them."""
    footer: int = 0
    """The bytes of the index at its end; none in runs of earlier versions."""

    @property
    def snapshot(self) -> bool:
        """Whether it holds all that its slots contain and so restarts their chains."""
        return self.name.endswith((SNAP_SUFFIX, ".snap.arrow"))


def digest_of(data: bytes | pa.Buffer) -> str:
    """The digest of some bytes, as hex."""
    return digest_bytes(data).hex()


def read_checked(files: Store, name: str, digest: str, what: str) -> bytes | pa.Buffer:
    """A whole file that a manifest names with its digest; where it is not as it was written, the
    error says `what` it is for.
    """
    try:
        data = files.get(name)
    except FileNotFoundError:
        damage = "is missing"
    else:
        if digest_of(data) == digest:
            return data
        damage = "is damaged: its digest differs"
    raise CheckpointCorruptError(f"{files.path(name)} {damage}. {what}. Restore it from a copy")


def slots_of(run: RunFile) -> list[int]:
    """The slots a run says something about, ascending."""
    numbers: list[int] = decode_slots(run.slots).tolist()
    return numbers


def batch_of(name: str) -> int | None:
    """The batch that wrote a file, from its name; None if the name does not say."""
    number, dash, _ = name.rpartition("/")[2].partition("-")
    return int(number) if dash and number.isascii() and number.isdigit() else None


def write_run(files: Store, name: str, changes: Iterable[Changes], base: str = "") -> RunFile:
    """Writes (slot, suffixes, values), slots ascending, as one durable file.

    A slot may come in several parts. One with no suffixes counts as said: in a snapshot it is an
    empty slot. The same changes on the same base give the same digest, whatever the name. Only a
    few megabytes are held at a time.
    """
    pieces = RunPieces(base)
    with contextlib.ExitStack() as stack:
        write: Callable[[bytes], None] | None = None
        for piece in pieces.of(changes):
            # Not before there is something to write: what fails until then leaves no file.
            write = write or stack.enter_context(files.writer(name))
            write(piece)
    return RunFile(
        name=name,
        digest=digest_of(pieces.index),
        bytes=pieces.bytes,
        slots=encode_slots(pieces.slots),
        footer=len(pieces.index),
    )


def write_changelog(
    files: Store, path: str, changes: Iterable[Changes], heads: Iterable[str]
) -> RunFile:
    """Writes what a task changed in some slots, on the versions (`heads`) that they had."""
    return write_run(files, path + LOG_SUFFIX, changes, base=digest_of(",".join(heads).encode()))


def write_snapshot(files: Store, path: str, contents: Iterable[Changes]) -> RunFile:
    """Writes all that some slots contain, which restarts their chains."""
    return write_run(files, path + SNAP_SUFFIX, contents)


def read_run(
    files: Store, run: RunFile, wanted: Container[int] | None = None
) -> Iterator[tuple[int, list[bytes], list[bytes | None]]]:
    """The changes of a run per slot, of the wanted slots only; checked before they are given.

    A slot that spans blocks comes once per block.
    """
    try:
        if run.footer and run.bytes >= _READ_WHOLE_BYTES:
            yield from _read_parts(files, run, wanted)
            return
        data = files.get(run.name)
        if data.size != run.bytes:
            raise _Damage(f"has {data.size} bytes, not the {run.bytes} that were committed")
        if not run.footer:
            _check(digest_of(data) == run.digest)
            yield from read_arrow(data, wanted)
            return
        index = _checked_index(run, data.slice(run.bytes - run.footer))
        for start, block in _wanted_blocks(index, wanted):
            yield from _read_block(block, data.slice(start, block.size), wanted)
    except FileNotFoundError:
        raise _corrupt(files, run, wanted, "is missing") from None
    except CheckpointReadError:
        raise  # nothing is known of the file
    except OSError as error:
        raise _corrupt(files, run, wanted, f"can't be read ({error})") from error
    except _Damage as damage:
        raise _corrupt(files, run, wanted, str(damage)) from None


class _Damage(Exception):
    """What is wrong with a file."""


def _read_parts(
    files: Store, run: RunFile, wanted: Container[int] | None
) -> Iterator[tuple[int, list[bytes], list[bytes | None]]]:
    """What the wanted slots have in a large file, by ranges."""
    [footer] = _ranges(files, run, [(run.bytes - run.footer, run.footer)])
    index = _checked_index(run, footer)
    together: list[tuple[int, Block]] = []
    size = 0
    for start, block in _wanted_blocks(index, wanted):
        together.append((start, block))
        size += block.size
        if size >= _READ_TOGETHER_BYTES:
            yield from _read_together(files, run, together, wanted)
            together, size = [], 0
    yield from _read_together(files, run, together, wanted)


def _read_together(
    files: Store, run: RunFile, blocks: list[tuple[int, Block]], wanted: Container[int] | None
) -> Iterator[tuple[int, list[bytes], list[bytes | None]]]:
    spans: list[tuple[int, int]] = []
    for start, block in blocks:
        if spans and sum(spans[-1]) == start:
            spans[-1] = (spans[-1][0], spans[-1][1] + block.size)
        else:
            spans.append((start, block.size))
    read = dict(zip((start for start, _ in spans), _ranges(files, run, spans), strict=True))
    first = 0
    for start, block in blocks:
        first = start if start in read else first
        yield from _read_block(block, read[first].slice(start - first, block.size), wanted)


def _ranges(files: Store, run: RunFile, spans: list[tuple[int, int]]) -> list[pa.Buffer]:
    read = files.get_ranges(run.name, spans)
    for (start, size), data in zip(spans, read, strict=True):
        if data.size != size:
            raise _Damage(f"ends at {start + data.size} of the {run.bytes} bytes of its run")
    return read


def _checked_index(run: RunFile, data: pa.Buffer) -> Index:
    _check(digest_of(data) == run.digest)
    try:
        return read_index(data)
    except UNREADABLE as error:
        raise _Damage(f"has an index of another form ({error})") from None


def _wanted_blocks(index: Index, wanted: Container[int] | None) -> Iterator[tuple[int, Block]]:
    """The blocks that have something of the wanted slots, with where they are."""
    start = 0
    for block in index.blocks:
        # A block of slots that are empty has no bytes, and there is nothing to read of it.
        if block.size and (wanted is None or any(slot in wanted for slot in block.slots)):
            yield start, block
        start += block.size


def _read_block(
    block: Block, data: pa.Buffer, wanted: Container[int] | None
) -> Iterator[tuple[int, list[bytes], list[bytes | None]]]:
    _check(digest_bytes(data) == block.digest)
    return read_block(block, data.to_pybytes(), wanted)


def _check(matches: bool) -> None:
    if not matches:
        raise _Damage("is damaged: its checksum does not match")


def _corrupt(
    files: Store, run: RunFile, wanted: Container[int] | None, damage: str
) -> CheckpointCorruptError:
    slots = [slot for slot in slots_of(run) if wanted is None or slot in wanted]
    return CheckpointCorruptError(
        f"{files.path(run.name)} {damage}. It holds state of slots {_brief(slots)} as of batch "
        f"{batch_of(run.name)}. Restore the file from a copy, or start from an older checkpoint"
    )


def _brief(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:16]))
    return f"{shown} and {len(numbers) - 16} more" if len(numbers) > 16 else shown
