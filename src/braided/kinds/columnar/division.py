"""Where the rows of a place that is too much for one call are divided.

A part ends with the row that makes it as large as a call may be, by number of rows or by bytes, and
the next begins there. Bytes are those of the values: what Arrow's buffers take besides depends on
the chunks in which rows have come, and that is not to be seen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["divisions"]

Numbers = npt.NDArray[np.int64]


def divisions(chunk: pa.RecordBatch, rows_max: int, bytes_max: int) -> list[int]:
    """The positions at which a place is divided. The chunk has to have the first row of the place,
    or of a part of it; its last column is the place.

    Where a part is full with the last row of the chunk, it ends there as well.
    """
    by_bytes = chunk.nbytes >= bytes_max
    if chunk.num_rows < rows_max and not by_bytes:
        return []
    places = chunk.column(chunk.num_columns - 1).to_numpy()
    begins = np.flatnonzero(np.diff(places, prepend=places[0] - 1))
    ends = np.append(begins[1:], len(places))
    large = ends - begins >= rows_max
    sums = np.zeros(0, np.int64)
    if by_bytes:
        sums = np.concatenate([[0], np.cumsum(_value_bytes(chunk))])
        large |= sums[ends] - sums[begins] >= bytes_max
    found: list[int] = []
    for begin, end in zip(begins[large].tolist(), ends[large].tolist(), strict=True):
        at = begin
        while True:
            full = at + rows_max
            if by_bytes:
                full = min(full, int(np.searchsorted(sums, sums[at] + bytes_max)))
            if full > end or (full == end and end < len(places)):
                break
            found.append(full)
            at = full
    return found


def _value_bytes(chunk: pa.RecordBatch) -> Numbers:
    """What the values of each row take; never more than Arrow says of all of them."""
    return sum((_bytes_of(column) for column in chunk.columns), np.zeros(chunk.num_rows, np.int64))


def _bytes_of(column: pa.Array) -> Numbers:
    kind, count = column.type, len(column)
    if pa.types.is_struct(kind):
        return sum(map(_bytes_of, column.flatten()), np.zeros(count, np.int64))
    if pa.types.is_map(kind):
        column = column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
        sums = np.concatenate([[0], np.cumsum(_bytes_of(column.flatten()))])
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        return np.asarray(np.diff(sums[bounds]), np.int64)
    try:
        return np.full(count, kind.bit_width // 8, np.int64)
    except ValueError:  # text and bytes have no width
        if pa.types.is_null(kind):
            return np.zeros(count, np.int64)
        return np.asarray(pc.binary_length(column).fill_null(0).to_numpy(), np.int64)
