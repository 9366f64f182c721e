"""The values of state variables as bytes, by their Spark schema.

A value is the version of its schema in one byte and the msgpack array of its fields, each as
Spark has it inside: timestamps and dates as numbers, decimals as text, structs as arrays. A value
read again is what Spark gives back for it: a timestamp in local time without a zone, a decimal of
its scale, a nested struct as a Row.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    Row,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from braided.errors import StateValueError, UnsupportedError
from braided.store.variables.variables import Codec

__all__ = ["UnfitValueError", "check_schema", "key_codec", "value_codec"]

Convert = Callable[[Any], Any]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_decode_tuple = msgspec.msgpack.Decoder(tuple[Any, ...]).decode
_ROWS = (tuple, list)
_BITS: dict[type[DataType], int] = {ByteType: 7, ShortType: 15, IntegerType: 31, LongType: 63}
_PLAIN: dict[type[DataType], type] = {
    BooleanType: bool,
    DoubleType: float,
    StringType: str,
    BinaryType: bytes,
}
_float32 = struct.Struct("f")


def check_schema(schema: StructType, where: str) -> None:
    """Refuses types that state can't have."""
    for field in schema.fields:
        _writer(field.dataType, f"{where}, field {field.name!r}")


def value_codec(name: str, versions: Sequence[StructType | None], at: int) -> Codec:
    """Values of one variable: `versions` are its schemas, the one of now, number `at`, the last."""
    now = versions[-1]
    assert now is not None
    readers: dict[int, Convert] = {}
    plain = _row_reader(now)
    is_plain = plain is tuple

    def read_old(data: bytes) -> tuple[Any, ...]:
        reader = readers.get(data[0])
        if reader is None:
            before = versions[data[0] - 1]
            assert before is not None
            made = plain if before == now else _evolved_reader(before, now)
            reader = readers[data[0]] = made
        return reader(_decode(data[1:]))  # type: ignore[no-any-return]

    def decode(data: bytes) -> tuple[Any, ...]:
        if data[0] != at:
            return read_old(data)
        if is_plain:
            return _decode_tuple(data[1:])
        return plain(_decode(data[1:]))  # type: ignore[no-any-return]

    return Codec(_row_encoder(name, now, bytes([at])), decode)


def key_codec(name: str, schema: StructType) -> Codec:
    """Keys of a map: equal keys are equal bytes."""
    read = _row_reader(schema)
    decode = _decode_tuple if read is tuple else lambda data: read(_decode(data))
    return Codec(_row_encoder(name, schema, exact=False), decode)


# --- writing ----------------------------------------------------------------------------------


def _row_encoder(
    name: str, schema: StructType, prefix: bytes = b"", exact: bool = True
) -> Callable[[Any], bytes]:
    """Tuples of Python values to bytes, which begin with the prefix."""
    write = _row_writer(name, schema, exact)
    kinds = tuple(_fast_type(field.dataType, exact) for field in schema.fields)
    bounds = [
        (i, 1 << _BITS[type(field.dataType)])
        for i, field in enumerate(schema.fields)
        if type(field.dataType) in _BITS
    ]

    def encode(value: Any) -> bytes:
        # Most values are tuples of just these types, and are stored as they are.
        if isinstance(value, _ROWS) and tuple(map(type, value)) == kinds:
            for i, bound in bounds:
                if not -bound <= value[i] < bound:
                    break
            else:
                return prefix + _encode(value)
        return prefix + _encode(write(value if isinstance(value, dict) else _items(name, value)))

    return encode


def _items(name: str, value: Any) -> tuple[Any, ...]:
    """Spark takes whatever can be iterated for its items: a text for its characters."""
    try:
        return tuple(value)
    except TypeError as error:
        raise TypeError(
            f"{error}: state {name!r} takes tuples, also where its schema has one field: "
            f"({value!r:.80},)"
        ) from None


def _row_writer(name: str, schema: StructType, exact: bool = True) -> Convert:
    """Tuples of Python values to what is stored of them."""
    fields = schema.fields
    width = len(fields)
    writers = [_writer(field.dataType, "", exact) for field in fields]
    nullable = [field.nullable for field in fields]

    def write(value: Any) -> list[Any]:
        if isinstance(value, dict):
            value = [value.get(field.name) for field in fields]
        if not isinstance(value, tuple | list):
            raise _refused(name, schema, f"got {value!r:.80} of type {type(value).__name__}")
        if len(value) != width:
            raise _refused(
                name,
                schema,
                "Input row doesn't have expected number of values required by the schema. "
                f"{width} fields are required while {len(value)} values are provided "
                "(a text that is no tuple counts as its characters).",
            )
        made: list[Any] = []
        for field, writer, may_be_null, item in zip(fields, writers, nullable, value, strict=True):
            item = _normalized(item)
            if item is None:
                if not may_be_null:
                    raise _refused(name, schema, f"field {field.name!r} is null and must not be")
                made.append(None)
                continue
            try:
                made.append(writer(item))
            except (TypeError, ValueError, OverflowError, decimal.DecimalException) as error:
                said = f": {error}" if str(error) else ""
                raise _refused(
                    name,
                    schema,
                    f"field {field.name!r} takes {field.dataType.simpleString()}, not {item!r:.80} "
                    f"of type {type(item).__name__}{said}",
                ) from None
        return made

    return write


class UnfitValueError(PySparkRuntimeError, StateValueError):
    """A value that does not fit: for the processor what Spark would raise, for us what it is."""


def _refused(name: str, schema: StructType, why: str) -> UnfitValueError:
    error = UnfitValueError(
        f"Error updating state {name!r}: {why.rstrip('.')}. Its schema is "
        f"{schema.simpleString()}, and values are tuples of it."
    )
    error.field = name
    return error


def _fast_type(kind: DataType, exact: bool) -> type | None:
    if type(kind) in _BITS:
        return int
    if not exact and isinstance(kind, DoubleType):
        return None  # a key has one zero and one NaN
    return _PLAIN.get(type(kind))


def _writer(kind: DataType, where: str, exact: bool = True) -> Convert:
    """A Python value, never None, to what is stored of it; TypeError or ValueError if it can't."""
    for integral, bits in _BITS.items():
        if isinstance(kind, integral):
            return _integers(1 << bits)
    if isinstance(kind, DoubleType | FloatType):
        return _floats(isinstance(kind, FloatType), exact)
    if isinstance(kind, StringType | CharType | VarcharType):
        return _strings
    for plain, python in _PLAIN.items():
        if isinstance(kind, plain):
            return _bytes if python is bytes else _only(python)
    if isinstance(kind, DecimalType):
        return _decimals(kind)
    if isinstance(kind, DateType):
        return lambda value: _expect(value, date) and kind.toInternal(value)
    if isinstance(kind, TimestampType | TimestampNTZType):
        return lambda value: _expect(value, datetime) and kind.toInternal(value)
    if isinstance(kind, DayTimeIntervalType):
        return lambda value: _expect(value, timedelta) and kind.toInternal(value)
    if isinstance(kind, NullType):
        return lambda value: None
    if isinstance(kind, ArrayType):
        item = _nullable(_writer(kind.elementType, where, exact))
        return lambda value: [item(each) for each in _expect(value, list | tuple | np.ndarray)]
    if isinstance(kind, MapType):
        key = _writer(kind.keyType, where, exact)
        item = _nullable(_writer(kind.valueType, where, exact))
        return lambda value: [[key(k), item(v)] for k, v in _expect(value, dict).items()]
    if isinstance(kind, StructType):
        return _row_writer(where, kind, exact)
    raise UnsupportedError(
        f"{where}: state of type {kind.simpleString()} is not supported; keep it as a string, a "
        "number or a struct of such"
    )


_SCALARS = frozenset({bool, int, float, str, bytes, datetime, type(None)})


def _normalized(value: Any) -> Any:
    """Values of numpy and pandas as Python has them, as in Spark."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, np.generic):
        return value.tolist()
    if isinstance(value, Row) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return type(value)(*map(_normalized, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_normalized, value))
    if isinstance(value, dict):
        return {_normalized(key): _normalized(item) for key, item in value.items()}
    if hasattr(value, "to_pytimedelta"):
        return value.to_pytimedelta()
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    return value


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _expect(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _only(kind: type) -> Convert:
    return lambda value: _expect(value, kind)


def _bytes(value: Any) -> bytes:
    return bytes(_expect(value, bytes | bytearray))  # of a number it would make so many zeros


def _integers(bound: int) -> Convert:
    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError
        if not -bound <= value < bound:
            raise OverflowError("it is out of range")
        return int(value)

    return convert


def _floats(single: bool, exact: bool) -> Convert:
    def convert(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        number = float(value)
        if single:
            (number,) = _float32.unpack(_float32.pack(number))
        return number if exact else (number + 0.0 if number == number else float("nan"))

    return convert


def _strings(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(_expect(value, str | int))


def _decimals(kind: DecimalType) -> Convert:
    quantum = decimal.Decimal(1).scaleb(-kind.scale)
    context = decimal.Context(prec=kind.precision, rounding=decimal.ROUND_HALF_UP)

    def convert(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, decimal.Decimal | int):
            raise TypeError
        made = decimal.Decimal(value).quantize(quantum, context=context)
        return str(made if made else made.copy_abs())  # Java has no negative zero

    return convert


# --- reading ----------------------------------------------------------------------------------


def _row_reader(schema: StructType) -> Convert:
    """What is stored to a tuple."""
    readers = [_reader(field.dataType) for field in schema.fields]
    if not any(readers):
        return tuple
    pairs = list(enumerate(readers))

    def read(stored: list[Any]) -> tuple[Any, ...]:
        return tuple(
            [
                stored[i] if convert is None or stored[i] is None else convert(stored[i])
                for i, convert in pairs
            ]
        )

    return read


def _reader(kind: DataType) -> Convert | None:
    """What is stored of a value, never None, to the value; None if that is the same."""
    if isinstance(kind, DecimalType):
        return decimal.Decimal
    if isinstance(kind, DateType | TimestampType | TimestampNTZType | DayTimeIntervalType):
        return kind.fromInternal
    if isinstance(kind, ArrayType):
        item = _reader(kind.elementType)
        if item is None:
            return None
        return lambda stored: [None if each is None else item(each) for each in stored]
    if isinstance(kind, MapType):
        key, value = _reader(kind.keyType) or _same, _reader(kind.valueType) or _same
        return lambda stored: {key(k): None if v is None else value(v) for k, v in stored}
    if isinstance(kind, StructType):
        read, names = _row_reader(kind), kind.names
        make = Row(*names)
        return lambda stored: make(*read(stored))
    return None


def _same(value: Any) -> Any:
    return value


def _evolved_reader(before: StructType, now: StructType) -> Convert:
    """What an earlier schema stored to a tuple of the schema of now."""
    stored_to_now = _renewed(before, now)
    read = _row_reader(now)
    return lambda stored: read(stored_to_now(stored))


def _renewed(before: DataType, now: DataType) -> Convert:
    """What was stored of a value of one type to what is stored of it in another, wider one."""
    if isinstance(now, StructType) and isinstance(before, StructType):
        positions = {field.name: i for i, field in enumerate(before.fields)}
        moves = [
            (positions[field.name], _renewed(before[field.name].dataType, field.dataType))
            if field.name in positions
            else (None, _same)
            for field in now.fields
        ]
        return lambda stored: [
            None if i is None or stored[i] is None else convert(stored[i]) for i, convert in moves
        ]
    if isinstance(now, ArrayType) and isinstance(before, ArrayType):
        item = _nullable(_renewed(before.elementType, now.elementType))
        return lambda stored: [item(each) for each in stored]
    if isinstance(now, MapType) and isinstance(before, MapType):
        item = _nullable(_renewed(before.valueType, now.valueType))
        return lambda stored: [[key, item(value)] for key, value in stored]
    if isinstance(now, DoubleType | FloatType) and not isinstance(before, DoubleType | FloatType):
        return float
    return _same
