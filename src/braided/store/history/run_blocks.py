"""The inside of a run's file: blocks of rows, and the index at its end that finds and proves them.

    block | block | ... | index

A block holds rows of one slot or of several small ones: the lengths of the keys, the lengths of the
values (all ones for a value that was removed), the keys, the values; compressed where that pays. It
ends with the row that fills it, or, once it is worth reading on its own, with its slot. So a slot
is found in few blocks, with less than `_SHARED_BYTES` of its neighbours', and a slot of any size is
written and read a block at a time.

The index has, for each block, its bytes, its digest and the rows of each slot in it, and what the
run builds on. The run is called by the digest of its index, which so commits to all that it holds.
Where blocks end follows from the rows alone: whoever writes the same rows writes the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = [
    "Block",
    "Changes",
    "Index",
    "RunPieces",
    "digest_bytes",
    "read_block",
    "read_index",
    "size_of",
]

Changes = tuple[int, Sequence[bytes], Sequence[bytes | None]]
"""A slot, suffixes, and their values; None where one was removed."""

_Lengths = npt.NDArray[np.int64]

_BLOCK_BYTES = 1 << 18
_SHARED_BYTES = 1 << 15
_PIECE_BYTES = 1 << 22
_FORM = 1
# zstd pays on text-like keys and repeated values and costs little where it does not.
_COMPRESSION = "zstd"
_COMPRESS_FROM_BYTES = 1 << 12
_REMOVED = 0xFFFFFFFF
_ROW_BYTES = 8  # of each row, beside its key and value


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A block as the index has it; they lie one after the other from the file's beginning."""

    size: int
    raw: int
    """Its size uncompressed; the same number where it is not compressed."""
    digest: bytes
    slots: list[int]
    rows: list[int]
    """How many of the block's rows are each slot's, in their order."""


class Index(msgspec.Struct, frozen=True, array_like=True):
    """What is in a run's file, and where."""

    form: int
    base: str
    """Names the versions that the run builds on."""
    blocks: list[Block]


_encode_index = msgspec.msgpack.Encoder().encode
read_index = msgspec.msgpack.Decoder(Index).decode


def digest_bytes(data: bytes | pa.Buffer) -> bytes:
    """The digest by which everything is known and checked: BLAKE2b, 128 bits."""
    return hashlib.blake2b(data, digest_size=16).digest()


class RunPieces:
    """The bytes of a run's file, piece by piece, as changes come in; then what was written."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._blocks: list[Block] = []
        self._keys: list[bytes] = []
        self._values: list[bytes | None] = []
        self._slots: list[int] = []
        self._rows: list[int] = []
        self._raw = 0
        self._ready: list[bytes] = []
        self._ready_bytes = 0
        self.slots: list[int] = []
        self.bytes = 0
        self.index = b""

    def of(self, changes: Iterable[Changes]) -> Iterator[bytes]:
        """The file. Slots must ascend; one may come in several parts, one after the other."""
        for slot, suffixes, values in changes:
            self._enter(slot)
            yield from self._add(slot, suffixes, values)
        if self._slots:
            self._close()
        self.index = _encode_index(Index(_FORM, self._base, self._blocks))
        self._put(self.index)
        yield self._taken()

    def _enter(self, slot: int) -> None:
        if not self.slots or slot > self.slots[-1]:
            self.slots.append(slot)
            if self._raw >= _SHARED_BYTES:
                self._close()
            self._say(slot)
        elif slot != self.slots[-1]:
            raise ValueError(f"slots of a run must ascend: {slot} after {self.slots[-1]}")

    def _add(
        self, slot: int, suffixes: Sequence[bytes], values: Sequence[bytes | None]
    ) -> Iterator[bytes]:
        if not suffixes:
            return
        if not self._slots:
            self._say(slot)  # its block is full; it goes on in the next
        size = size_of(suffixes, values) + _ROW_BYTES * len(suffixes)
        if self._raw + size < _BLOCK_BYTES:
            self._take(suffixes, values, size)
        else:
            yield from self._add_and_cut(slot, suffixes, values)

    def _add_and_cut(
        self, slot: int, suffixes: Sequence[bytes], values: Sequence[bytes | None]
    ) -> Iterator[bytes]:
        totals = np.cumsum(_lengths(suffixes) + _lengths([v or b"" for v in values]) + _ROW_BYTES)
        start = before = 0
        while start < len(suffixes):
            if not self._slots:
                self._say(slot)
            missing = before + _BLOCK_BYTES - self._raw
            stop = min(int(np.searchsorted(totals, missing)) + 1, len(suffixes))
            size = int(totals[stop - 1]) - before
            self._take(suffixes[start:stop], values[start:stop], size)
            start, before = stop, before + size
            if self._raw >= _BLOCK_BYTES:
                self._close()
                if self._ready_bytes >= _PIECE_BYTES:
                    yield self._taken()

    def _take(self, suffixes: Sequence[bytes], values: Sequence[bytes | None], size: int) -> None:
        self._keys += suffixes
        self._values += values
        self._rows[-1] += len(suffixes)
        self._raw += size

    def _say(self, slot: int) -> None:
        self._slots.append(slot)
        self._rows.append(0)

    def _close(self) -> None:
        body = _body(self._keys, self._values)
        stored = body
        if len(body) >= _COMPRESS_FROM_BYTES:
            packed = pa.compress(body, codec=_COMPRESSION, asbytes=True)
            stored = packed if len(packed) < len(body) else body
        digest = digest_bytes(stored)
        self._blocks.append(Block(len(stored), len(body), digest, self._slots, self._rows))
        self._put(stored)
        self._keys, self._values, self._slots, self._rows, self._raw = [], [], [], [], 0

    def _put(self, data: bytes) -> None:
        self._ready.append(data)
        self._ready_bytes += len(data)

    def _taken(self) -> bytes:
        piece = b"".join(self._ready)
        self.bytes += len(piece)
        self._ready, self._ready_bytes = [], 0
        return piece


def read_block(
    block: Block, stored: bytes, wanted: Container[int] | None = None
) -> Iterator[tuple[int, list[bytes], list[bytes | None]]]:
    """The changes of the wanted slots in a block whose bytes were checked. A slot of which it has
    no row is left out.
    """
    body = pa.py_buffer(stored)
    if block.size != block.raw:
        body = pa.decompress(body, block.raw, codec=_COMPRESSION)
    count = sum(block.rows)
    lengths = np.frombuffer(body, "<u4", 2 * count).astype(np.int64)
    keys, body = _array(lengths[:count], None, body.slice(_ROW_BYTES * count))
    removed = lengths[count:] == _REMOVED
    lengths[count:][removed] = 0
    values, _ = _array(lengths[count:], removed if removed.any() else None, body)
    row = 0
    for slot, rows in zip(block.slots, block.rows, strict=True):
        if rows and (wanted is None or slot in wanted):
            yield slot, keys.slice(row, rows).to_pylist(), values.slice(row, rows).to_pylist()
        row += rows


def _array(
    lengths: _Lengths, removed: npt.NDArray[np.bool_] | None, body: pa.Buffer
) -> tuple[pa.Array, pa.Buffer]:
    """An array of bytes that lie at the beginning of some others, and those after it.

    From buffers, and not by `pa.array`, which imports pandas: a third of a second for a worker.
    """
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    validity = None
    if removed is not None:
        validity = pa.py_buffer(np.packbits(~removed, bitorder="little"))
    buffers = [validity, pa.py_buffer(offsets), body]
    array = pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)
    return array, body.slice(int(offsets[-1]))


def size_of(suffixes: Iterable[bytes], values: Iterable[bytes | None]) -> int:
    """The bytes of some changes, by which chains and snapshots are weighed."""
    return sum(map(len, suffixes)) + sum(map(len, filter(None, values)))


def _body(keys: list[bytes], values: list[bytes | None]) -> bytes:
    present: list[bytes] = values  # type: ignore[assignment]
    if None in values:
        sizes = np.fromiter(
            (_REMOVED if value is None else len(value) for value in values), "<u4", len(values)
        )
        present = [value for value in values if value]
    else:
        sizes = _lengths(present).astype("<u4")
    return b"".join((_lengths(keys).astype("<u4").tobytes(), sizes.tobytes(), *keys, *present))


def _lengths(values: Sequence[bytes]) -> _Lengths:
    return np.fromiter(map(len, values), np.int64, len(values))
