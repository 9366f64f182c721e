"""Columns of aggregates in hand, and the records in which a key's values lie in a slot.

A column is a numpy array and which of its values are there, or, for text and everything nested, a
list of bytes. A record is one key's values in a row:

    one bit per column: is it there | the columns of fixed width, packed | length and bytes of each
                                    |                                    | other column

so that the records of a hundred thousand keys whose columns all have a fixed width are one numpy
array, read and written without a loop over keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from braided.errors import UnsupportedError
from braided.store.columnar.packing import Mask, bitmap, valid_of
from braided.store.slots.key_codec import from_plain, to_plain

__all__ = ["Column", "RecordCodec", "RecordColumn", "StoredColumns", "choose", "field_of"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True, slots=True)
class Column:
    """Values of some keys; those that are not valid are null and may hold anything."""

    values: Any
    valid: Mask

    def __len__(self) -> int:
        return len(self.valid)


def choose(mask: Mask, first: Column, second: Column) -> Column:
    """The first where the mask is set, the second elsewhere."""
    valid = np.where(mask, first.valid, second.valid)
    if isinstance(first.values, list):
        pairs = zip(mask.tolist(), first.values, second.values, strict=True)
        return Column([a if take else b for take, a, b in pairs], valid)
    return Column(np.where(mask, first.values, second.values), valid)


class RecordColumn:
    """One column of a record: how Arrow, numpy and Spark's order see it."""

    dtype: np.dtype[Any] | None = None
    """Of one value in a record; None where the width differs from value to value."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind

    def read(self, array: pa.Array) -> Column:
        """The values of an Arrow array of this type."""
        raise NotImplementedError

    def write(self, column: Column) -> pa.Array:
        """The column as an Arrow array of this type."""
        raise NotImplementedError

    def above(self, a: Column, b: Column) -> Mask:
        """Where a is greater than b in Spark's order; both are valid where it counts."""
        raise NotImplementedError


class _Fixed(RecordColumn):
    """Values of one width, which Arrow and numpy lay out alike."""

    def __init__(self, kind: pa.DataType, dtype: Any) -> None:
        super().__init__(kind)
        self.dtype = np.dtype(dtype)

    def read(self, array: pa.Array) -> Column:
        assert self.dtype is not None
        count = len(array)
        if not count:
            return Column(np.zeros(0, self.dtype), np.zeros(0, np.bool_))
        data = array.buffers()[1]
        skipped = array.offset * self.dtype.itemsize
        return Column(np.frombuffer(data, self.dtype, count, skipped), valid_of(array))

    def write(self, column: Column) -> pa.Array:
        data = pa.py_buffer(np.ascontiguousarray(column.values, self.dtype))
        return pa.Array.from_buffers(self.kind, len(column), [bitmap(column.valid), data])

    def above(self, a: Column, b: Column) -> Mask:
        return np.asarray(a.values > b.values)


class _Float(_Fixed):
    """Floating-point numbers, in the order that Spark gives them."""

    def above(self, a: Column, b: Column) -> Mask:
        # NaN is above all numbers, and equal to itself.
        return np.asarray((a.values > b.values) | (np.isnan(a.values) & ~np.isnan(b.values)))


class _Bool(_Fixed):
    """Truth values: bits in Arrow, a byte each in numpy and in a record."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind, np.uint8)

    def read(self, array: pa.Array) -> Column:
        filled = array.fill_null(False) if array.null_count else array
        values = filled.to_numpy(zero_copy_only=False).astype(np.uint8)
        return Column(values, valid_of(array))

    def write(self, column: Column) -> pa.Array:
        bits = pa.py_buffer(np.packbits(column.values.astype(np.bool_), bitorder="little"))
        return pa.Array.from_buffers(self.kind, len(column), [bitmap(column.valid), bits])


class _Decimal(_Fixed):
    """128 bits in two words."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind, [("low", "<u8"), ("high", "<i8")])

    def above(self, a: Column, b: Column) -> Mask:
        (x, y) = a.values, b.values
        same = x["high"] == y["high"]
        return np.asarray((x["high"] > y["high"]) | (same & (x["low"] > y["low"])))


class _Bytes(RecordColumn):
    """Text and binary; Spark orders both by their bytes."""

    def read(self, array: pa.Array) -> Column:
        valid = valid_of(array)
        values = array.cast(pa.binary()).to_pylist()
        if array.null_count:
            values = [b"" if value is None else value for value in values]
        return Column(values, valid)

    def write(self, column: Column) -> pa.Array:
        values = column.values
        offsets = np.zeros(len(values) + 1, np.int32)
        np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=offsets[1:])
        buffers = [bitmap(column.valid), pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
        return pa.Array.from_buffers(self.kind, len(values), buffers)

    def above(self, a: Column, b: Column) -> Mask:
        pairs = zip(a.values, b.values, strict=True)
        return np.fromiter((x > y for x, y in pairs), np.bool_, len(a))


class _Nested(RecordColumn):
    """Structs and arrays, as msgpack."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._rank = _ranker(kind)

    def read(self, array: pa.Array) -> Column:
        valid = valid_of(array)
        return Column([_encode(value) for value in to_plain(array)], valid)

    def write(self, column: Column) -> pa.Array:
        pairs = zip(column.values, column.valid.tolist(), strict=True)
        return from_plain(self.kind, [_decode(raw) if there else None for raw, there in pairs])

    def above(self, a: Column, b: Column) -> Mask:
        rank, above = self._rank, np.zeros(len(a), np.bool_)
        for i in np.flatnonzero(a.valid & b.valid).tolist():
            above[i] = rank(_decode(a.values[i])) > rank(_decode(b.values[i]))
        return above


def field_of(kind: pa.DataType, name: str) -> RecordColumn:
    """The field for values of an Arrow type."""
    if pa.types.is_boolean(kind):
        return _Bool(kind)
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return _Float(kind, kind.to_pandas_dtype())
    if pa.types.is_integer(kind):
        return _Fixed(kind, kind.to_pandas_dtype())
    if pa.types.is_date32(kind):
        return _Fixed(kind, np.int32)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time64(kind):
        return _Fixed(kind, np.int64)
    if pa.types.is_decimal128(kind):
        return _Decimal(kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _Bytes(kind)
    if pa.types.is_struct(kind) or pa.types.is_list(kind):
        inner = [kind.value_type] if pa.types.is_list(kind) else [child.type for child in kind]
        for child in inner:
            field_of(child, name)
        return _Nested(kind)
    raise UnsupportedError(f"{name}: values of Arrow type {kind} can't be kept as state")


def _ranker(kind: pa.DataType) -> Callable[[Any], Any]:
    """Plain values to something that Python compares as Spark compares the values."""

    def of_known(kind: pa.DataType) -> Callable[[Any], Any]:
        if pa.types.is_struct(kind):
            parts = [_ranker(child.type) for child in kind]
            return lambda value: tuple(p(v) for p, v in zip(parts, value, strict=True))
        if pa.types.is_list(kind):
            item = _ranker(kind.value_type)
            return lambda value: tuple(map(item, value))
        if pa.types.is_floating(kind):
            return lambda value: (1, 0.0) if math.isnan(value) else (0, value)
        if pa.types.is_decimal(kind):
            return Decimal
        if pa.types.is_string(kind):
            return str.encode
        return lambda value: value

    rank = of_known(kind)
    # Null comes first.
    return lambda value: (0,) if value is None else (1, rank(value))


class RecordCodec:
    """Records of some fields."""

    def __init__(self, fields: Sequence[RecordColumn]) -> None:
        self.fields = tuple(fields)
        self._fixed = [i for i, field in enumerate(fields) if field.dtype is not None]
        self._free = [i for i, field in enumerate(fields) if field.dtype is None]
        layout: list[Any] = [("valid", np.uint8, (-(-len(self.fields) // 8),))]
        layout += [(f"f{i}", self.fields[i].dtype) for i in self._fixed]
        self._layout = np.dtype(layout)

    def decode(self, records: Sequence[bytes | None]) -> list[Column]:
        """The columns of these records; where there is none, nothing is valid and numbers are 0."""
        size = self._layout.itemsize
        whole: Sequence[bytes] = records  # type: ignore[assignment]
        if None in records:
            nothing = bytes(size + 4 * len(self._free))
            whole = [nothing if record is None else record for record in records]
        heads = [record[:size] for record in whole] if self._free else whole
        rows = np.frombuffer(b"".join(heads), self._layout)
        bits = np.unpackbits(rows["valid"], axis=1, bitorder="little").view(np.bool_)
        columns: list[Any] = [None] * len(self.fields)
        for i in self._fixed:
            columns[i] = Column(rows[f"f{i}"], bits[:, i])
        if self._free:
            for i, values in zip(self._free, self._tails(whole), strict=True):
                columns[i] = Column(values, bits[:, i])
        return columns

    def encode(self, columns: Sequence[Column]) -> list[bytes]:
        """One record per row."""
        count = len(columns[0])
        rows = np.zeros(count, self._layout)
        valid = np.stack([column.valid for column in columns], axis=1)
        rows["valid"] = np.packbits(valid, axis=1, bitorder="little")
        for i in self._fixed:
            rows[f"f{i}"] = columns[i].values
            if not columns[i].valid.all():
                rows[f"f{i}"][~columns[i].valid] = np.zeros(1, self._layout[f"f{i}"])
        heads: list[bytes] = rows.view(f"V{self._layout.itemsize}").tolist()
        if not self._free:
            return heads
        lists = [columns[i].values for i in self._free]
        return [
            head + b"".join(len(value).to_bytes(4, "little") + value for value in values)
            for head, *values in zip(heads, *lists, strict=True)
        ]

    def _tails(self, records: Sequence[bytes]) -> list[list[bytes]]:
        tails: list[list[bytes]] = [[] for _ in self._free]
        for record in records:
            at = self._layout.itemsize
            for values in tails:
                end = at + 4 + int.from_bytes(record[at : at + 4], "little")
                values.append(record[at + 4 : end])
                at = end
        return tails


class StoredColumns:
    """The kept columns of an aggregation as one Arrow column; as `StoredFields` is for fields."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self.type: pa.DataType = pa.struct(list(fields))
        self._records = RecordCodec([field_of(field.type, field.name) for field in fields])

    def read(self, raw: bytes) -> tuple[tuple[bytes], tuple[int, ...]]:
        """A record, which is decoded with many others, and no timers: windows have those."""
        return (raw,), ()

    def column(self, rows: Sequence[tuple[bytes] | None]) -> pa.Array:
        """What `read` gave for many keys as one column; None is null."""
        columns = self._records.decode([None if row is None else row[0] for row in rows])
        pairs = zip(self._records.fields, columns, strict=True)
        missing = pa.array([row is None for row in rows], pa.bool_())
        arrays = [field.write(column) for field, column in pairs]
        return pa.StructArray.from_arrays(arrays, fields=list(self.type), mask=missing)
