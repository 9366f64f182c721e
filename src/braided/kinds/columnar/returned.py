"""What hooks return, as columns: checked, and cast where no value is lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.errors import OutputSchemaError, StateValueError
from braided.store.columnar.casting import exactly, masked, rows_of_matrix
from braided.store.columnar.fields import DUE, REMOVE, ColumnField
from braided.store.columnar.packing import FixedField, packing_of

__all__ = ["Returned", "new_columns", "positions_of", "returned", "table_of"]

Positions = npt.NDArray[np.int64]


class Returned(NamedTuple):
    """A hook's answer, taken apart but not looked into."""

    state: Any
    output: Any
    origin: Any
    """Of which rows, or keys, the rows of the output are."""


def returned(value: Any, hook: str) -> Returned:
    if not isinstance(value, tuple):
        return Returned(value, None, None)
    if 2 <= len(value) <= 3:
        return Returned(*value, *[None] * (3 - len(value)))
    raise OutputSchemaError(
        f"{hook} returned a tuple of {len(value)}; it returns the new state, or (state, output), "
        "or (state, output, positions)"
    )


# --- the state --------------------------------------------------------------------------------


def new_columns(
    value: Any, fields: Sequence[ColumnField], old: Sequence[pa.Array], count: int, hook: str
) -> tuple[list[pa.Array], npt.NDArray[np.bool_] | None]:
    """The columns of all fields for so many keys, and which keys are to be dropped, if any."""
    if value is None:
        return list(old), None
    given = value if isinstance(value, Mapping) else _by_name(table_of(value, hook))
    known = {field.name: number for number, field in enumerate(fields)}
    columns, removed = list(old), None
    for name, values in given.items():
        if name == REMOVE:
            array = _column(values, ColumnField(REMOVE, pa.bool_(), False), count, hook)
            removed = np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False))
        elif name in known:
            number = known[name]
            columns[number] = _column(values, fields[number], count, hook)
        else:
            hint = "; a class that has onDue has it" if name == DUE else ""
            raise StateValueError(
                f"{hook} returned a column {name!r}, which is no field of the class{hint}; its "
                f"fields are {', '.join(known)}"
            )
    return columns, removed


def _by_name(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _column(values: Any, field: ColumnField, count: int, hook: str) -> pa.Array:
    try:
        array = _array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise StateValueError(
            f"{hook} returned {_told(values)} for {field.name!r}, which does not fit the field's "
            f"type {field.type}: {error}"
        ) from None
    if len(array) != count:
        raise StateValueError(
            f"{hook} returned {len(array)} values of {field.name!r} for {count} keys: the new "
            "state has a row for each row of `state`, in the same order"
        )
    return array


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, np.ndarray):
        return exactly(_from_numpy(values, kind), kind)
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        if hasattr(values, "to_arrow"):
            values = values.to_arrow()
        else:
            # Not as the type at once: that would cut off what is behind the point of a float.
            values = pa.array(_zoned(values) if _has_zone(kind) else values)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.chunks)
    return exactly(values, kind)


def _has_zone(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _zoned(values: Any) -> Any:
    """Python's datetimes without a zone are local time, as everywhere in Spark's Python."""
    if not isinstance(values, list | tuple):
        return values
    return [
        each.astimezone(UTC) if isinstance(each, datetime) and each.tzinfo is None else each
        for each in values
    ]


def _from_numpy(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """A column of whatever type comes closest."""
    if values.ndim == 2:
        items = masked(values.reshape(-1))
        width = values.shape[1]
        if not pa.types.is_fixed_size_list(kind):
            return rows_of_matrix(values, items)
        if width != kind.list_size:
            raise ValueError(f"its lists have {width} items")
        return pa.FixedSizeListArray.from_arrays(exactly(items, kind.value_type), type=kind)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if is_number and values.ndim == 1 and not isinstance(values, np.ma.MaskedArray):
        packing = packing_of(kind)
        if isinstance(packing, FixedField) and packing.dtype == values.dtype:
            return packing.unpack(values, np.ones(len(values), np.bool_))
    return masked(values)


def _told(values: Any) -> str:
    kind = getattr(values, "dtype", None) or getattr(values, "type", None)
    return f"{type(values).__name__}{f' of {kind}' if kind is not None else ''}"


# --- the output -------------------------------------------------------------------------------


def table_of(value: Any, hook: str) -> pa.Table:
    """A table, of whatever is one: Arrow, pandas, Polars, a dict of arrays."""
    if isinstance(value, pa.Table):
        return value
    try:
        if isinstance(value, pa.RecordBatch):
            return pa.Table.from_batches([value])
        if isinstance(value, Mapping):
            return pa.table({name: _free_array(each) for name, each in value.items()})
        if type(value).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(value, preserve_index=False)
        if hasattr(value, "__arrow_c_stream__") or hasattr(value, "to_arrow"):
            return pa.table(value) if hasattr(value, "__arrow_c_stream__") else value.to_arrow()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise OutputSchemaError(
            f"{hook} returned {type(value).__name__}, of which no table can be made: {error}"
        ) from None
    raise OutputSchemaError(
        f"{hook} returned {type(value).__name__} {value!r:.80}; it returns columns by name: a dict "
        "of arrays, an Arrow, pandas or Polars table"
    )


def _free_array(values: Any) -> Any:
    """A column of an output, whose type is seen to later."""
    if isinstance(values, np.ndarray):
        if values.ndim == 2:
            return rows_of_matrix(values, masked(values.reshape(-1)))
        return masked(values)
    return values


def positions_of(
    origin: Any, rows_out: int, rows: int, starts: Positions | None, hook: str
) -> Positions:
    """Of each row of the output the position of the row, or key, that it came from.

    `starts`: the first row of each key, where the output may also have one row for each key.
    """
    if origin is None:
        if rows_out == rows:
            return np.arange(rows)
        if starts is not None and rows_out == len(starts):
            return starts
        many = f"{rows} rows and {len(starts)} keys" if starts is not None else f"{rows} keys"
        raise OutputSchemaError(
            f"{hook} returned an output of {rows_out} rows for {many}: say where each of them "
            "came from with a third value, (state, output, positions), which has the positions "
            "of those, or a mask over them"
        )
    array = np.asarray(origin)
    if array.ndim != 1:
        raise OutputSchemaError(
            f"{hook} returned {type(origin).__name__} {origin!r:.80} as positions; there is a list "
            "or an array of them, one for each row of the output"
        )
    if array.dtype == np.bool_ and len(array) == rows:
        array = np.flatnonzero(array)
    elif not len(array):
        array = array.astype(np.int64)  # to numpy, an empty list has floats
    if array.dtype.kind not in "iu" or array.shape != (rows_out,):
        raise OutputSchemaError(
            f"{hook} returned {len(array)} positions of {array.dtype} for an output of {rows_out} "
            "rows; there is one for each of them"
        )
    if rows_out and not (int(array.min()) >= 0 and int(array.max()) < rows):
        raise OutputSchemaError(f"{hook} returned positions that are not in 0..{rows - 1}")
    return array.astype(np.int64)
