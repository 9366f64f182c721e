"""Values of hooks as columns: what does not fit a field is refused, and nothing is changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from braided.store.columnar.casting import exactly, masked, rows_of_matrix

_floats = pa.list_(pa.float64())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array(["7"]), pa.int64()),
        (pa.array(["7"]).dictionary_encode(), pa.int64()),
        (pa.array([b"7"]), pa.float64()),
        (pa.array(["true"]), pa.bool_()),
        (pa.array(["2024-02-29"]), pa.date32()),
        (pa.array([7]), pa.string()),
        (pa.array([["7"]]), pa.list_(pa.int32())),
        (pa.array([{"a": "7"}]), pa.struct([("a", pa.int64())])),
        (pa.array([0.5, 1e300]), pa.float32()),
        (pa.array([[1e300]]), pa.list_(pa.float32(), 1)),
        (pa.array([[-1e300], None]), pa.list_(pa.float32())),
        (pa.array([{"a": 1e300}]), pa.struct([("a", pa.float32())])),
        (pa.array([0, 2]), pa.bool_()),
        (pa.array([1.5]), pa.int64()),
        (pa.array([2**60 + 1]), pa.float64()),
        (pa.array([5]), pa.timestamp("us")),
    ],
)
def test_what_does_not_fit_is_refused(values: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises((ValueError, pa.ArrowException)):
        exactly(values, kind)


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        (pa.array([0.1, float("inf"), None]), pa.float32(), [np.float32(0.1), float("inf"), None]),
        (pa.array([0, 1, None]), pa.bool_(), [False, True, None]),
        (pa.array([True]), pa.int64(), [1]),
        (pa.array([b"a"]), pa.string(), ["a"]),
        (pa.array([None]), pa.string(), [None]),
        (pa.array([1, 1]).dictionary_encode(), pa.int64(), [1, 1]),
        (pa.array([[1.5], None], _floats), pa.list_(pa.float32()), [[1.5], None]),
        (pa.array([{"a": 1}]), pa.struct([("a", pa.int8())]), [{"a": 1}]),
        (masked(np.ma.array([1, 2], mask=[False, True])), pa.int64(), [1, None]),
        (masked(np.ma.array([1, 2])), pa.int64(), [1, 2]),
    ],
)
def test_what_fits_is_what_it_was(values: pa.Array, kind: pa.DataType, found: Any) -> None:
    assert exactly(values, kind).to_pylist() == found


def test_a_matrix_is_a_column_of_lists_of_any_length() -> None:
    for width in (0, 1, 3):
        whole = np.arange(4.0 * width).reshape(4, width)
        assert rows_of_matrix(whole, masked(whole.reshape(-1))).to_pylist() == whole.tolist()
