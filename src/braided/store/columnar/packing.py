"""Values of one field for many keys: from Arrow to the bytes of records, and back.

A field has a fixed width in a record, or takes as many bytes as each value needs. Both are made and
read by whole columns; only structs and lists of text take a loop over values, as msgpack.

    numbers, times, decimals      their bytes                         fixed
    bool                          one byte                            fixed
    list of a fixed size          its items, a bit for each null      fixed
    string, binary                their bytes
    list of numbers or times      its items, a bit for each null
    any other list, struct        msgpack
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.errors import StateValueError
from braided.store.columnar.arrow_types import is_plain
from braided.store.slots.key_codec import from_plain, to_plain

__all__ = [
    "Bytes",
    "FixedField",
    "FreeField",
    "Mask",
    "Spans",
    "bitmap",
    "packing_of",
    "span_positions",
    "valid_of",
]

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Lengths = npt.NDArray[np.int64]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class FixedField:
    """A field whose values all take the same bytes."""

    def __init__(self, kind: pa.DataType, dtype: Any) -> None:
        self.kind = kind
        self.dtype = np.dtype(dtype)

    def pack(self, array: pa.Array) -> npt.NDArray[Any]:
        """The values; those that are null may be anything."""
        return _plain_values(array, self.dtype)

    def unpack(self, values: npt.NDArray[Any], valid: Mask) -> pa.Array:
        data = pa.py_buffer(np.ascontiguousarray(values))
        return pa.Array.from_buffers(self.kind, len(valid), [bitmap(valid), data])


class _BoolField(FixedField):
    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind, np.uint8)

    def pack(self, array: pa.Array) -> npt.NDArray[Any]:
        filled = array.fill_null(False) if array.null_count else array
        return np.asarray(filled.to_numpy(zero_copy_only=False)).astype(np.uint8)

    def unpack(self, values: npt.NDArray[Any], valid: Mask) -> pa.Array:
        bits = pa.py_buffer(np.packbits(values.astype(np.bool_), bitorder="little"))
        return pa.Array.from_buffers(self.kind, len(valid), [bitmap(valid), bits])


class _VectorField(FixedField):
    """Lists of a fixed size. A bit that is set says that an item is null."""

    def __init__(self, kind: pa.DataType) -> None:
        self._item = _numpy_type(kind.value_type)
        self._size = kind.list_size
        items = ("items", self._item, (self._size,))
        super().__init__(kind, [items, ("nulls", np.uint8, (-(-self._size // 8),))])

    def pack(self, array: pa.Array) -> npt.NDArray[Any]:
        rows = np.zeros(len(array), self.dtype)
        size = self._size
        items = array.values.slice(array.offset * size, len(array) * size)
        values = _plain_values(items, self._item).reshape(-1, size)
        if items.null_count:
            nulls = ~valid_of(items)
            values = np.where(nulls.reshape(-1, size), np.zeros(1, self._item), values)
            rows["nulls"] = np.packbits(nulls.reshape(-1, size), axis=1, bitorder="little")
        rows["items"] = values
        return rows

    def unpack(self, values: npt.NDArray[Any], valid: Mask) -> pa.Array:
        data = pa.py_buffer(np.ascontiguousarray(values["items"]))
        nulls = np.ascontiguousarray(values["nulls"])
        there = None
        if nulls.any():
            bits = np.unpackbits(nulls, axis=1, bitorder="little", count=self._size)
            there = bitmap(~bits.astype(np.bool_).reshape(-1))
        count = len(valid) * self._size
        items = pa.Array.from_buffers(self.kind.value_type, count, [there, data])
        return pa.Array.from_buffers(self.kind, len(valid), [bitmap(valid)], children=[items])


class Spans(NamedTuple):
    """Bytes of many values, one after the other."""

    lengths: Lengths
    data: Bytes


class FreeField:
    """A field whose values take as many bytes as they need: text and binary."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind

    def pack(self, array: pa.Array) -> Spans:
        """Those that are null take none."""
        if array.null_count:
            array = array.fill_null(b"" if pa.types.is_binary(self.kind) else "")
        offsets = _offsets(array)
        data = array.buffers()[2]
        whole = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        return Spans(np.diff(offsets), whole[offsets[0] : offsets[-1]])

    def unpack(self, spans: Spans, valid: Mask) -> pa.Array:
        buffers = [bitmap(valid), pa.py_buffer(_ends(spans.lengths)), pa.py_buffer(spans.data)]
        return pa.Array.from_buffers(self.kind, len(valid), buffers)


class _ListField(FreeField):
    """Lists of numbers or times: n items, and after them a bit for each that says it is null.

    How many there are follows from the bytes: n items of width w take n * w + ceil(n / 8).
    """

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._item = _numpy_type(kind.value_type)

    def pack(self, array: pa.Array) -> Spans:
        width = self._item.itemsize
        offsets, valid = _offsets(array), valid_of(array)
        counts = np.where(valid, np.diff(offsets), 0)
        lengths = counts * width + -(-counts // 8)
        starts = np.cumsum(lengths) - lengths
        data = np.zeros(int(lengths.sum()), np.uint8)
        chosen = span_positions(offsets[:-1], counts)
        items = array.values.take(pa.array(chosen))
        values = _plain_values(items, self._item)
        if items.null_count:
            nulls = ~valid_of(items)
            values = np.where(nulls, np.zeros(1, self._item), values)
            number = np.arange(len(chosen)) - np.repeat(np.cumsum(counts) - counts, counts)
            at = np.repeat(starts + counts * width, counts) + number // 8
            np.add.at(data, at[nulls], (1 << (number[nulls] % 8)).astype(np.uint8))
        data[span_positions(starts, counts * width)] = np.ascontiguousarray(values).view(np.uint8)
        return Spans(lengths, data)

    def unpack(self, spans: Spans, valid: Mask) -> pa.Array:
        width = self._item.itemsize
        lengths, data = spans
        counts = 8 * lengths // (8 * width + 1)
        starts = np.cumsum(lengths) - lengths
        items = data[span_positions(starts, counts * width)]
        tails = lengths - counts * width
        bits = data[span_positions(starts + counts * width, tails)]
        there = None
        if bits.any():
            number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
            at = np.repeat(starts + counts * width, counts) + number // 8
            there = bitmap((data[at] >> (number % 8).astype(np.uint8)) & 1 == 0)
        count = int(counts.sum())
        inner = pa.Array.from_buffers(
            self.kind.value_type, count, [there, pa.py_buffer(np.ascontiguousarray(items))]
        )
        buffers = [bitmap(valid), pa.py_buffer(_ends(counts))]
        return pa.Array.from_buffers(self.kind, len(valid), buffers, children=[inner])


class _NestedField(FreeField):
    """Structs, and lists of anything, as msgpack."""

    def pack(self, array: pa.Array) -> Spans:
        valid = valid_of(array).tolist()
        pairs = zip(to_plain(array), valid, strict=True)
        raw = [_encode(value) if there else b"" for value, there in pairs]
        lengths = np.fromiter(map(len, raw), np.int64, len(raw))
        return Spans(lengths, np.frombuffer(b"".join(raw), np.uint8))

    def unpack(self, spans: Spans, valid: Mask) -> pa.Array:
        data, ends = spans.data.tobytes(), np.cumsum(spans.lengths).tolist()
        begins = [0, *ends[:-1]]
        triples = zip(begins, ends, valid.tolist(), strict=True)
        values = [_decode(data[a:b]) if there else None for a, b, there in triples]
        return from_plain(self.kind, values)


def packing_of(kind: pa.DataType) -> FixedField | FreeField:
    """How values of a type that is not refused lie in a record."""
    if pa.types.is_boolean(kind):
        return _BoolField(kind)
    if is_plain(kind) or pa.types.is_decimal128(kind):
        return FixedField(kind, _numpy_type(kind))
    if pa.types.is_fixed_size_list(kind):
        return _VectorField(kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return FreeField(kind)
    if pa.types.is_list(kind) and is_plain(kind.value_type):
        return _ListField(kind)
    return _NestedField(kind)


def span_positions(starts: Lengths, lengths: Lengths) -> Lengths:
    """The positions start, start + 1, ... of each span, one span after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def bitmap(valid: Mask) -> pa.Buffer | None:
    """The same as Arrow has it; None where all are."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    if pa.types.is_decimal128(kind):
        return np.dtype([("low", "<u8"), ("high", "<i8")])
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        number: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return number
    return np.dtype(np.int32 if pa.types.is_date32(kind) else np.int64)


def _plain_values(array: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if not len(array):
        return np.zeros(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def valid_of(array: pa.Array) -> Mask:
    """Which of the values are not null."""
    if not array.null_count:
        return np.ones(len(array), np.bool_)
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))


def _offsets(array: pa.Array) -> Lengths:
    """Where the values of text or of lists begin and end, among what they point into."""
    if not len(array):
        return np.zeros(1, np.int64)
    raw = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    return raw.astype(np.int64)


def _ends(lengths: Lengths) -> npt.NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise StateValueError(
            f"a field of {len(lengths)} keys takes {offsets[-1]} bytes or items, more than an "
            "Arrow column can hold; read fewer keys at a time, or keep less of a key in one field"
        )
    return offsets.astype(np.int32)
