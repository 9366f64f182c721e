"""Runs: durable files of slot changes. A changelog and a snapshot are the same thing on disk.

A run is an Arrow IPC file of (slot, key, value), slots ascending, null meaning removed. A changelog
run holds what one task changed in one batch; a snapshot run holds everything that some slots
contained, and so restarts their chains. Its name says which (`.log.arrow`, `.snap.arrow`) and its
digest, of the file's bytes, is what the manifest records and what the cache calls a version by.

A digest must therefore name one history only. Two batches that change the same keys to the same
values would have equal contents, so a changelog carries the digests of the versions it builds on
(`base`): its digest commits to them, theirs to the ones before, and no two histories share one. The
attempt is left out: two attempts that do the same thing to the same state have the same digest.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Container, Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.errors import CheckpointCorruptError
from braided.store.durable.store import Store

__all__ = [
    "LOG_SUFFIX",
    "SNAP_SUFFIX",
    "RunFile",
    "batch_of",
    "bitmap_of",
    "digest_of",
    "read_run",
    "slots_of",
    "write_changelog",
    "write_run",
    "write_snapshot",
]

LOG_SUFFIX = ".log.arrow"
SNAP_SUFFIX = ".snap.arrow"

_ROWS_PER_RECORD_BATCH = 1 << 16
_BYTES_PER_RECORD_BATCH = 1 << 28  # Arrow counts the bytes of a column with 31 bits
# zstd pays on text-like keys and repeated values and costs little where it does not.
_COMPRESSION = "zstd"
_COMPRESS_FROM_BYTES = 1 << 12
_BASE = b"braided.base"


class RunFile(msgspec.Struct, frozen=True):
    """A durable run as the manifest records it."""

    name: str
    digest: str
    bytes: int
    slots: str

    @property
    def snapshot(self) -> bool:
        """Whether it holds all that its slots contain and so restarts their chains."""
        return self.name.endswith(SNAP_SUFFIX)


def digest_of(data: bytes | pa.Buffer) -> str:
    """The digest by which files are known and checked: BLAKE2b, 128 bits, as hex."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def bitmap_of(slots: Iterable[int]) -> str:
    """Slot numbers as base64 of a bitmap, lowest slot in the lowest bit of the first byte."""
    numbers = np.fromiter(slots, dtype=np.int64)
    bits = np.zeros(int(numbers.max()) + 1 if numbers.size else 0, dtype=np.uint8)
    bits[numbers] = 1
    return base64.b64encode(np.packbits(bits, bitorder="little").tobytes()).decode()


def slots_of(run: RunFile) -> list[int]:
    """The slots a run says something about, ascending."""
    return list(_slots(run.slots))


# A channel has the same slots batch after batch, and applying a manifest asks a few times.
@functools.lru_cache(maxsize=1024)
def _slots(bitmap: str) -> tuple[int, ...]:
    packed = np.frombuffer(base64.b64decode(bitmap), dtype=np.uint8)
    return tuple(np.flatnonzero(np.unpackbits(packed, bitorder="little")).tolist())


def batch_of(name: str) -> int | None:
    """The batch that wrote a file, from its name; None if the name does not say."""
    number, dash, _ = name.rpartition("/")[2].partition("-")
    return int(number) if dash and number.isascii() and number.isdigit() else None


def write_run(
    files: Store,
    name: str,
    changes: Iterable[tuple[int, Sequence[bytes], Sequence[bytes | None]]],
    base: str = "",
) -> RunFile:
    """Writes (slot, suffixes, values), slots ascending, as one durable file.

    A slot with no suffixes counts as said: in a snapshot it is an empty slot. The same changes on
    the same base give the same digest, whatever the name.
    """
    slots: list[int] = []
    counts: list[int] = []
    keys: list[bytes] = []
    values: list[bytes | None] = []
    for slot, suffixes, slot_values in changes:
        if slots and slot <= slots[-1]:
            raise ValueError(f"slots of a run must ascend: {slot} after {slots[-1]}")
        slots.append(slot)
        counts.append(len(suffixes))
        keys += suffixes
        values += slot_values
    data = _encode(np.repeat(np.array(slots, dtype=np.int32), counts), keys, values, base)
    files.put(name, data)
    return RunFile(name=name, digest=digest_of(data), bytes=data.size, slots=bitmap_of(slots))


def write_changelog(
    files: Store,
    path: str,
    changes: Iterable[tuple[int, Sequence[bytes], Sequence[bytes | None]]],
    heads: Iterable[str],
) -> RunFile:
    """Writes what a task changed in some slots, on the versions (`heads`) that they had."""
    return write_run(files, path + LOG_SUFFIX, changes, base=digest_of(",".join(heads).encode()))


def write_snapshot(
    files: Store, path: str, contents: Iterable[tuple[int, Sequence[bytes], Sequence[bytes]]]
) -> RunFile:
    """Writes all that some slots contain, which restarts their chains."""
    return write_run(files, path + SNAP_SUFFIX, contents)


def read_run(
    files: Store, run: RunFile, wanted: Container[int] | None = None
) -> Iterator[tuple[int, list[bytes], list[bytes | None]]]:
    """The changes of a run per slot, of the wanted slots only; checked against its digest first.

    A slot that spans record batches comes once per record batch.
    """
    try:
        data = files.get(run.name)
    except FileNotFoundError:
        raise _corrupt(files, run, wanted, "is missing") from None
    except OSError as error:
        raise _corrupt(files, run, wanted, f"can't be read ({error})") from error
    if data.size != run.bytes:
        damage = f"has {data.size} bytes, not the {run.bytes} that were committed"
        raise _corrupt(files, run, wanted, damage)
    if digest_of(data) != run.digest:
        raise _corrupt(files, run, wanted, "is damaged: its checksum does not match")
    reader = pa.ipc.open_file(data)
    for index in range(reader.num_record_batches):
        batch = reader.get_batch(index)
        # Not to_numpy(), which imports pandas.
        numbers = np.frombuffer(batch.column(0).buffers()[1], np.int32, batch.num_rows)
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
        stops = np.append(starts[1:], len(numbers))
        for slot, start, stop in zip(
            numbers[starts].tolist(), starts.tolist(), stops.tolist(), strict=True
        ):
            if wanted is None or slot in wanted:
                part = batch.slice(start, stop - start)
                yield slot, part.column(1).to_pylist(), part.column(2).to_pylist()


def _encode(
    slots: npt.NDArray[np.int32], keys: list[bytes], values: list[bytes | None], base: str
) -> pa.Buffer:
    fields = [
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
    schema = pa.schema(fields, metadata={_BASE: base.encode()})
    present = [value if value is not None else b"" for value in values]
    removed = None in values
    sizes = _sizes(keys) + _sizes(present)
    compression = _COMPRESSION if sizes.sum() >= _COMPRESS_FROM_BYTES else None
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for start, stop in _cuts(sizes):
            rows = stop - start
            columns = [
                pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(slots[start:stop])]),
                _binary(keys[start:stop], None),
                _binary(present[start:stop], values[start:stop] if removed else None),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return sink.getvalue()


def _cuts(sizes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where record batches start and stop: so many rows at most, and so many bytes."""
    totals = np.cumsum(sizes)
    start, before = 0, 0
    while start < len(sizes):
        full = int(np.searchsorted(totals, before + _BYTES_PER_RECORD_BATCH, side="right"))
        stop = min(max(full, start + 1), start + _ROWS_PER_RECORD_BATCH, len(sizes))
        yield start, stop
        start, before = stop, int(totals[stop - 1])


def _binary(present: list[bytes], values: list[bytes | None] | None) -> pa.Array:
    """An Arrow array of bytes, null where `values` has None.

    From buffers: `pa.array` of a list is slower, and imports pandas the first time, which costs
    every worker a third of a second.
    """
    offsets = np.zeros(len(present) + 1, dtype=np.int32)
    np.cumsum(_sizes(present), out=offsets[1:])
    validity = None
    if values is not None:
        there = np.fromiter((value is not None for value in values), bool, len(values))
        validity = pa.py_buffer(np.packbits(there, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(present))]
    return pa.Array.from_buffers(pa.binary(), len(present), buffers)


def _sizes(values: list[bytes]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, values), np.int64, len(values))


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
