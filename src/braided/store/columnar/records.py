"""Records of some fields, made and read for many keys at a time.

A record is a head of fixed width, and after it the bytes of the fields that have none:

    version | one bit per field: is it there | fields of fixed width | lengths of the others | bytes

So the records of keys whose fields all have a fixed width are one numpy array, and those of others
are taken apart by arithmetic on whole columns of offsets. What is null has zeros for bytes: equal
states have equal records.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import ne
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.store.columnar.packing import (
    Bytes,
    FixedField,
    FreeField,
    Mask,
    Spans,
    packing_of,
    span_positions,
)

__all__ = ["PackedRecords", "RecordLayout", "UnreadableRecord"]


class UnreadableRecord(ValueError):
    """Bytes that are no record of these fields."""


class PackedRecords:
    """Records, one after the other in one piece of memory."""

    def __init__(self, data: Bytes, offsets: npt.NDArray[np.int64] | None, width: int) -> None:
        """`offsets` where they are of different lengths; else all have `width` bytes."""
        self._data = data
        self._offsets = offsets
        self._width = width
        self._list: list[bytes] | None = None

    def __len__(self) -> int:
        if self._offsets is None:
            return len(self._data) // self._width
        return len(self._offsets) - 1

    def tolist(self) -> list[bytes]:
        """The records as bytes of their own."""
        if self._list is None:
            self._list = self._cut()
        return self._list

    def chosen(self, mask: Mask) -> list[bytes]:
        """The records at which the mask is set."""
        if mask.all():
            return self.tolist()
        if self._offsets is None:
            rows = self._data.reshape(-1, self._width)[mask]
            return PackedRecords(rows.reshape(-1), None, self._width).tolist()
        return list(compress(self.tolist(), mask.tolist()))

    def differs(self, other: PackedRecords) -> Mask:
        """Where a record is another one than that of the same number in `other`."""
        if self._offsets is None and other._offsets is None:
            mine = self._data.reshape(-1, self._width)
            return np.asarray((mine != other._data.reshape(-1, other._width)).any(axis=1))
        pairs = map(ne, self.tolist(), other.tolist())
        return np.fromiter(pairs, np.bool_, len(self))

    def _cut(self) -> list[bytes]:
        if self._offsets is None:
            whole: list[bytes] = self._data.view(f"V{self._width}").tolist()
            return whole
        buffers = [None, pa.py_buffer(self._offsets), pa.py_buffer(self._data)]
        return list(pa.Array.from_buffers(pa.large_binary(), len(self), buffers).to_pylist())


class RecordLayout:
    """How the fields of one version lie in a record."""

    def __init__(self, version: int, kinds: Sequence[pa.DataType]) -> None:
        self.version = version
        packings = [packing_of(kind) for kind in kinds]
        self._fixed = [(i, p) for i, p in enumerate(packings) if isinstance(p, FixedField)]
        self._free = [(i, p) for i, p in enumerate(packings) if isinstance(p, FreeField)]
        self._count = len(packings)
        parts: list[Any] = [("version", np.uint8), ("valid", np.uint8, (-(-len(packings) // 8),))]
        parts += [(f"f{i}", packing.dtype) for i, packing in self._fixed]
        parts += [(f"n{i}", "<u4") for i, _ in self._free]
        self._head = np.dtype(parts)
        self.width = None if self._free else self._head.itemsize
        """The bytes of every record; None where they differ."""

    def encode(self, arrays: Sequence[pa.Array], count: int) -> PackedRecords:
        """One record per row of the arrays, which are of the fields' types."""
        rows = np.zeros(count, self._head)
        rows["version"] = self.version
        valid = np.ones((count, self._count), np.bool_)
        for i, array in enumerate(arrays):
            if array.null_count:
                valid[:, i] = np.asarray(array.is_valid().to_numpy(zero_copy_only=False))
        rows["valid"] = np.packbits(valid, axis=1, bitorder="little")
        for i, packing in self._fixed:
            rows[f"f{i}"] = packing.pack(arrays[i])
            if arrays[i].null_count:
                rows[f"f{i}"][~valid[:, i]] = np.zeros(1, packing.dtype)
        if not self._free:
            return PackedRecords(rows.view(np.uint8).reshape(-1), None, self._head.itemsize)
        spans = [(i, packing.pack(arrays[i])) for i, packing in self._free]
        for i, (lengths, _) in spans:
            rows[f"n{i}"] = lengths
        return self._with_tails(rows, [span for _, span in spans])

    def _with_tails(self, rows: npt.NDArray[Any], spans: list[Spans]) -> PackedRecords:
        head = self._head.itemsize
        lengths = head + sum(span.lengths for span in spans)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        data = np.zeros(int(offsets[-1]), np.uint8)
        starts = offsets[:-1]
        heads = starts[:, None] + np.arange(head)
        data[heads] = rows.view(np.uint8).reshape(-1, head)
        starts = starts + head
        for span in spans:
            data[span_positions(starts, span.lengths)] = span.data
            starts = starts + span.lengths
        return PackedRecords(data, offsets, 0)

    def decode(self, records: Sequence[bytes]) -> tuple[list[pa.Array], PackedRecords]:
        """The fields of records of this version, and the records once more."""
        data = np.frombuffer(b"".join(records), np.uint8)
        head = self._head.itemsize
        if not self._free:
            if len(data) != head * len(records):
                raise UnreadableRecord(f"{len(records)} records have {len(data)} bytes")
            rows = data.view(self._head)
            self._check_versions(rows)
            return self._arrays(rows, []), PackedRecords(data, None, head)
        offsets = np.zeros(len(records) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, records), np.int64, len(records)), out=offsets[1:])
        if len(records) and int(np.diff(offsets).min()) < head:
            raise UnreadableRecord("a record is shorter than its fields")
        starts = offsets[:-1]
        heads = data[starts[:, None] + np.arange(head)]
        rows = heads.reshape(-1).view(self._head)
        self._check_versions(rows)
        starts = starts + head
        spans = []
        for i, _ in self._free:
            lengths = rows[f"n{i}"].astype(np.int64)
            if len(records) and int((starts + lengths - offsets[1:]).max()) > 0:
                raise UnreadableRecord("a record ends before its fields do")
            spans.append(Spans(lengths, data[span_positions(starts, lengths)]))
            starts = starts + lengths
        if not np.array_equal(starts, offsets[1:]):
            raise UnreadableRecord("a record goes on after its fields")
        return self._arrays(rows, spans), PackedRecords(data, offsets, 0)

    def _check_versions(self, rows: npt.NDArray[Any]) -> None:
        if not (rows["version"] == self.version).all():
            raise UnreadableRecord(f"a record has another version than {self.version}")

    def _arrays(self, rows: npt.NDArray[Any], spans: list[Spans]) -> list[pa.Array]:
        bits = np.unpackbits(rows["valid"], axis=1, bitorder="little").view(np.bool_)
        arrays: list[Any] = [None] * self._count
        for i, packing in self._fixed:
            arrays[i] = packing.unpack(rows[f"f{i}"], bits[:, i])
        for (i, free), span in zip(self._free, spans, strict=True):
            arrays[i] = free.unpack(span, bits[:, i])
        return arrays
