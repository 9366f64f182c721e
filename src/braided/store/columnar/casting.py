"""Values as columns of a field's type, where each of them stays what it is.

Arrow's own casts are nearly that, but they read numbers out of text, make infinities of floats that
are too large, and every number but 0 a true. A float64 is rounded to the nearest float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["exactly", "masked", "rows_of_matrix"]


def exactly(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values as the type; raises ValueError (or one of Arrow's) if one does not fit it."""
    if values.type == kind:
        return values
    _check_kinds(values.type, kind)
    cast = values.cast(kind)
    _check_values(values, cast)
    return cast


def masked(values: npt.NDArray[Any]) -> pa.Array:
    """An array of numpy's, of one dimension; what its mask hides is null."""
    if isinstance(values, np.ma.MaskedArray):
        return pa.array(values.data, mask=np.ma.getmaskarray(values))
    return pa.array(values)


def rows_of_matrix(values: npt.NDArray[Any], items: pa.Array) -> pa.ListArray:
    """The items of a matrix, which are given once more as a column, as lists of its rows."""
    rows, width = values.shape
    if rows * width > np.iinfo(np.int32).max:
        raise ValueError(f"{rows} lists of {width} are more than a column of lists can hold")
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32) * width), items)


def _check_kinds(given: pa.DataType, kind: pa.DataType) -> None:
    if pa.types.is_dictionary(given):
        given = given.value_type
    if pa.types.is_null(given):
        return
    if _is_listed(given) and _is_listed(kind):
        _check_kinds(given.value_type, kind.value_type)
    elif pa.types.is_struct(given) and pa.types.is_struct(kind):
        for child in kind:
            if given.get_field_index(child.name) >= 0:
                _check_kinds(given.field(child.name).type, child.type)
    elif _is_text(given) != _is_text(kind):
        raise ValueError(f"{given} is not turned into {kind} unasked; cast it")
    elif pa.types.is_timestamp(kind) and pa.types.is_integer(given):
        raise ValueError("a time is a timestamp or a datetime64, not a number")


def _check_values(given: pa.Array, cast: pa.Array) -> None:
    """What Arrow does not see to: types are those that were let through."""
    if pa.types.is_dictionary(given.type):
        given = given.dictionary_decode()
    if pa.types.is_null(given.type):
        return
    if _is_listed(given.type):
        if _is_listed(cast.type):
            _check_values(given.flatten(), cast.flatten())
    elif pa.types.is_struct(given.type):
        for number, child in enumerate(cast.type):
            at = given.type.get_field_index(child.name)
            if at >= 0:
                _check_values(given.flatten()[at], cast.flatten()[number])
    elif pa.types.is_float32(cast.type) and pa.types.is_floating(given.type):
        if _count(pc.is_inf(cast)) > _count(pc.is_inf(given)):
            raise ValueError("a value is too large for a float")
    elif pa.types.is_boolean(cast.type) and _count(pc.not_equal(given, cast.cast(given.type))):
        raise ValueError("a number that is neither 0 nor 1 is not true or false")


def _count(found: pa.Array) -> int:
    return int(pc.sum(found).as_py() or 0)


def _is_listed(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _TEXTS)


_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
