"""Keys as bytes, equal exactly when Spark calls the keys equal.

Spark groups null with null, NaN with NaN and -0.0 with 0.0. A key is stored as the msgpack array
of its columns' physical values (timestamps and dates as integers, decimals as text, structs and
lists as arrays), with floats brought to one NaN and one zero: one key, one byte string, and the
values can be read back. Conversion works on whole Arrow columns; only the last step is per key.

The suffix of a key in a slot's map is its kind and these bytes, or a digest of them when they
are too long for LMDB; then the stored value carries the full key.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from braided.errors import UnsupportedError

__all__ = [
    "RECORD",
    "RECORD_LONG",
    "SUFFIX_BYTES_MAX",
    "TIMER",
    "KeyCodec",
    "from_plain",
    "record_key",
    "suffix",
    "timer_bound",
    "timer_key",
    "timer_ms",
    "timer_parts",
    "to_plain",
    "unwrap",
    "wrap",
]

SUFFIX_BYTES_MAX = 480  # of the 511 LMDB allows; the rest is operator, slot and headroom
RECORD, RECORD_LONG, TIMER = b"k", b"K", b"t"
_DIGEST_BYTES = 32
_TIMER_SHORT, _TIMER_LONG = b"\x00", b"\x01"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class KeyCodec:
    """The bytes of keys over the grouping columns of one operator."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._types: list[pa.DataType] = [field.type for field in schema]
        for field in schema:
            reason = _refusal(field.type)
            if reason:
                raise UnsupportedError(f"groupBy column {field.name!r}: {reason}")

    def encode_batch(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """One key per row of the given columns."""
        if len(columns) == 1:
            return [_encode((value,)) for value in _physical(columns[0])]
        return [_encode(values) for values in zip(*map(_physical, columns), strict=True)]

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """The physical values of one key."""
        return tuple(_decode(data))

    def decode_batch(self, keys: Sequence[bytes]) -> list[pa.Array]:
        """The keys as Arrow columns of the schema's types, one row per key."""
        rows = [_decode(key) for key in keys]
        return [_logical(kind, [row[i] for row in rows]) for i, kind in enumerate(self._types)]

    def changes(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Where a row's key differs from the one before it; True at 0."""
        rows = len(columns[0]) if columns else 0
        changed = np.zeros(rows, dtype=np.bool_)
        if rows:
            for column in columns:
                changed[1:] |= _differs(column)
            changed[0] = True
        return changed


def _refusal(kind: pa.DataType) -> str | None:
    """Why a column of this type can't be part of a key, or None."""
    if pa.types.is_map(kind):
        return "Spark can't group by a map; group by map_entries(...) or by single values of it"
    if pa.types.is_struct(kind):
        return next(filter(None, (_refusal(child.type) for child in kind)), None)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _refusal(kind.value_type)
    if any(is_kind(kind) for is_kind in (*_PLAIN, *_FLOATS, *_AS_INT, pa.types.is_decimal)):
        return None
    return f"keys of Arrow type {kind} are not supported; cast the column, for example to bigint"


_PLAIN = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_null,
)
_FLOATS = (pa.types.is_float32, pa.types.is_float64)
_AS_INT = (
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_time64,
    pa.types.is_duration,
)


# --- Arrow column -> physical Python values, and back -----------------------------------------


def to_plain(column: pa.Array) -> list[Any]:
    """The values as msgpack takes them, every float as it is."""
    return _physical(column, exact=True)


def from_plain(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Values that `to_plain` gave, as a column again."""
    return _logical(kind, values)


def _physical(column: pa.Array, exact: bool = False) -> list[Any]:
    kind = column.type
    if pa.types.is_date32(kind):
        return _physical(column.view(pa.int32()))
    if any(is_kind(kind) for is_kind in _AS_INT):
        return _physical(column.view(pa.int64()))
    if any(is_kind(kind) for is_kind in _FLOATS):
        if exact:
            return list(column.to_pylist())
        values = _canonical(column).tolist()
        return _with_nulls(column, values)
    if pa.types.is_integer(kind) and not column.null_count:
        values = column.to_numpy(zero_copy_only=False).tolist()
        return list(values)
    if pa.types.is_struct(kind):
        # flatten() rather than field(): it applies the offset and the nulls of the struct.
        children = [_physical(child, exact) for child in column.flatten()]
        rows = list(zip(*children, strict=True)) if children else [()] * len(column)
        return _with_nulls(column, rows)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = column.offsets.to_numpy().tolist()
        first, last = offsets[0], offsets[-1]
        items = _physical(column.values.slice(first, last - first), exact)
        bounds = pairwise(offsets)
        return _with_nulls(column, [items[start - first : end - first] for start, end in bounds])
    return list(column.to_pylist())  # strings, bytes, booleans, null; Decimal is encoded as text


def _canonical(column: pa.Array) -> npt.NDArray[np.float64]:
    """The floats with one NaN and one zero, as Spark compares them; nulls are zero here."""
    filled = column.fill_null(0) if column.null_count else column
    values = filled.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # -0.0 + 0.0 is 0.0
    values[np.isnan(values)] = np.nan
    return np.asarray(values)


def _with_nulls(column: pa.Array, values: list[Any]) -> list[Any]:
    if not column.null_count:
        return values
    valid = _valid(column).tolist()
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


def _valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))


def _logical(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).view(kind)
    if any(is_kind(kind) for is_kind in _AS_INT):
        return pa.array(values, pa.int64()).view(kind)
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    if pa.types.is_struct(kind):
        children = [
            _logical(child.type, [None if value is None else value[i] for value in values])
            for i, child in enumerate(kind)
        ]
        missing = pa.array([value is None for value in values], pa.bool_())
        if not children:
            return pa.array([None if value is None else {} for value in values], kind)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=missing)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = [item for value in values if value is not None for item in value]
        ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)])
        wide = pa.types.is_large_list(kind)
        maker = pa.LargeListArray if wide else pa.ListArray
        return maker.from_arrays(
            pa.array(ends, pa.int64() if wide else pa.int32()),
            _logical(kind.value_type, items),
            type=kind,
            mask=pa.array([value is None for value in values], pa.bool_()),
        )
    return pa.array(values, kind)


# --- where do adjacent rows differ? -----------------------------------------------------------


def _differs(column: pa.Array) -> npt.NDArray[np.bool_]:
    """For rows 1..n-1: is this value another key than the one before it?"""
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column) - 1, dtype=np.bool_)
    if any(is_kind(kind) for is_kind in _FLOATS):
        bits = _canonical(column).view(np.int64)
        unequal = bits[1:] != bits[:-1]
    elif pa.types.is_struct(kind):
        unequal = np.zeros(len(column) - 1, dtype=np.bool_)
        for child in column.flatten():
            unequal |= _differs(child)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        keys = [_encode(value) for value in _physical(column)]
        unequal = np.fromiter((a != b for a, b in pairwise(keys)), np.bool_, len(keys) - 1)
    else:
        compared = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1))
        filled = compared.fill_null(False) if compared.null_count else compared
        unequal = np.asarray(filled.to_numpy(zero_copy_only=False))
    if column.null_count:
        valid = _valid(column)
        both = valid[1:] & valid[:-1]
        unequal = np.where(both, unequal, valid[1:] != valid[:-1])
    return np.asarray(unequal)


# --- suffixes in a slot's map -----------------------------------------------------------------


def suffix(kind: bytes, key: bytes, before: bytes = b"") -> tuple[bytes, bool]:
    """Where a key of this kind lies; True if only its digest does, and the value has the key."""
    if len(kind) + len(before) + len(key) <= SUFFIX_BYTES_MAX:
        return kind + before + key, False
    return kind.upper() + before + _digest(key), True


def record_key(key: bytes) -> tuple[bytes, bool]:
    """The suffix of a key's state record, and whether its value must be wrapped."""
    if len(key) < SUFFIX_BYTES_MAX:
        return b"k" + key, False
    return b"K" + _digest(key), True


def wrap(key: bytes, value: bytes) -> bytes:
    """A value that lies under a digest: the full key goes with it."""
    return struct.pack("<I", len(key)) + key + value


def unwrap(place: bytes, stored: bytes) -> tuple[bytes, bytes]:
    """The full key and the value of a record found under this suffix."""
    if place[:1] == RECORD:
        return place[1:], stored
    end = 4 + int(struct.unpack_from("<I", stored)[0])
    return stored[4:end], stored[end:]


def timer_key(ms: int, key: bytes) -> tuple[bytes, bytes]:
    """The suffix and the value of a timer.

    All timers are of one kind, long keys too, so that the first suffix of that kind is the next
    timer due; the value says whether the key or its digest follows the time.
    """
    if len(key) <= SUFFIX_BYTES_MAX - 9:
        return timer_bound(ms) + key, _TIMER_SHORT
    return timer_bound(ms) + _digest(key), _TIMER_LONG + key


def timer_bound(ms: int) -> bytes:
    """What every timer of this millisecond starts with: a bound for ordered scans."""
    return TIMER + (ms + 2**63).to_bytes(8, "big")


def timer_ms(place: bytes) -> int:
    """When the timer under this suffix is due."""
    return int.from_bytes(place[1:9], "big") - 2**63


def timer_parts(place: bytes, stored: bytes) -> tuple[int, bytes]:
    """When the timer is due, and the full key it belongs to."""
    return timer_ms(place), place[9:] if stored == _TIMER_SHORT else stored[1:]


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()
