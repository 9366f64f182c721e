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
import hashlib
from collections.abc import Container, Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.errors import CheckpointCorruptError
from braided.state.files import Files

__all__ = [
    "LOG_SUFFIX",
    "SNAP_SUFFIX",
    "RunFile",
    "batch_of",
    "bitmap_of",
    "digest_of",
    "read_run",
    "slots_of",
    "write_run",
]

LOG_SUFFIX = ".log.arrow"
SNAP_SUFFIX = ".snap.arrow"

_ROWS_PER_RECORD_BATCH = 1 << 16
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
    packed = np.frombuffer(base64.b64decode(run.slots), dtype=np.uint8)
    slots: list[int] = np.flatnonzero(np.unpackbits(packed, bitorder="little")).tolist()
    return slots


def batch_of(name: str) -> int | None:
    """The batch that wrote a file, from its name; None if the name does not say."""
    number, dash, _ = name.rpartition("/")[2].partition("-")
    return int(number) if dash and number.isascii() and number.isdigit() else None


def write_run(
    files: Files,
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
    files.write(name, data)
    return RunFile(name=name, digest=digest_of(data), bytes=data.size, slots=bitmap_of(slots))


def read_run(
    files: Files, run: RunFile, wanted: Container[int] | None = None
) -> Iterator[tuple[int, list[bytes], list[bytes | None]]]:
    """The changes of a run per slot, of the wanted slots only; checked against its digest first.

    A slot that spans record batches comes once per record batch.
    """
    try:
        data = files.read(run.name)
    except FileNotFoundError:
        raise _corrupt(files, run, wanted, "is missing") from None
    except OSError as error:
        raise _corrupt(files, run, wanted, f"can't be read ({error})") from error
    if data.size != run.bytes:
        found = f"has {data.size} bytes, not the {run.bytes} that were committed"
        raise _corrupt(files, run, wanted, found)
    if digest_of(data) != run.digest:
        raise _corrupt(files, run, wanted, "is damaged: its checksum does not match")
    reader = pa.ipc.open_file(data)
    for index in range(reader.num_record_batches):
        batch = reader.get_batch(index)
        numbers = batch.column(0).to_numpy()
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
    schema = pa.schema(
        [
            pa.field("slot", pa.int32(), nullable=False),
            pa.field("key", pa.binary(), nullable=False),
            pa.field("value", pa.binary()),
        ],
        metadata={_BASE: base.encode()},
    )
    sink = pa.BufferOutputStream()
    size = sum(map(len, keys))
    options = pa.ipc.IpcWriteOptions(
        compression=_COMPRESSION if size >= _COMPRESS_FROM_BYTES else None, use_threads=False
    )
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for start in range(0, len(keys), _ROWS_PER_RECORD_BATCH):
            stop = start + _ROWS_PER_RECORD_BATCH
            columns = [
                pa.array(slots[start:stop]),
                pa.array(keys[start:stop], pa.binary()),
                pa.array(values[start:stop], pa.binary()),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return sink.getvalue()


def _corrupt(
    files: Files, run: RunFile, wanted: Container[int] | None, found: str
) -> CheckpointCorruptError:
    slots = [slot for slot in slots_of(run) if wanted is None or slot in wanted]
    return CheckpointCorruptError(
        f"{files.path(run.name)} {found}. It holds state of slots {_brief(slots)} as of batch "
        f"{batch_of(run.name)}. Restore the file from a copy, or start from an older checkpoint"
    )


def _brief(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:16]))
    return f"{shown} and {len(numbers) - 16} more" if len(numbers) > 16 else shown
