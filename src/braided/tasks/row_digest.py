"""A digest of rows, by which two attempts of a task are compared.

It covers the values and nothing else: Arrow keeps the rows of a slice in the buffers of the whole,
at an offset, and where a value is null its place may hold anything. Whole columns are digested; no
value is looked at in Python.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["RowDigest"]


class RowDigest:
    """Equal for two sequences of chunks that have the same rows."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, chunk: pa.RecordBatch) -> None:
        self._hash.update(chunk.num_rows.to_bytes(8, "little"))
        for column in chunk.columns:
            self._add(column)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _add(self, column: pa.Array) -> None:
        kind, valid = column.type, None
        self._hash.update(b"\1" if column.null_count else b"\0")
        if column.null_count:
            valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
            self._hash.update(np.packbits(valid).tobytes())
        if pa.types.is_struct(kind):
            # flatten() rather than field(): it applies the offset and the nulls of the struct.
            for child in column.flatten():
                self._add(child)
        elif pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
            if pa.types.is_map(kind):
                column = column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
            lengths = pc.list_value_length(column).fill_null(0)
            self._hash.update(lengths.to_numpy(zero_copy_only=False).tobytes())
            self._add(column.flatten())
        elif pa.types.is_boolean(kind):
            values = column.fill_null(False).to_numpy(zero_copy_only=False)
            self._hash.update(np.packbits(values).tobytes())
        elif not pa.types.is_null(kind) and len(column):
            self._add_buffers(column, valid)

    def _add_buffers(self, column: pa.Array, valid: npt.NDArray[np.bool_] | None) -> None:
        """Text, bytes and everything of a fixed width, in which each row has a stretch of bytes."""
        kind, first, last = column.type, column.offset, column.offset + len(column)
        offset_type = _OFFSETS.get(kind)
        if offset_type is None:
            width = kind.bit_width // 8
            values = np.frombuffer(column.buffers()[1], np.uint8)[first * width : last * width]
            if valid is not None:
                values = np.where(valid[:, None], values.reshape(len(column), width), 0)
            self._hash.update(np.ascontiguousarray(values).data)
            return
        _, bounds, data = column.buffers()
        offsets = np.frombuffer(bounds, offset_type)[first : last + 1]
        lengths = np.diff(offsets)
        if valid is not None and lengths[~valid].any():
            self._add_buffers(column.fill_null(b"" if "binary" in str(kind) else ""), None)
            return
        self._hash.update(lengths.data)
        if data is not None:
            self._hash.update(memoryview(data)[offsets[0] : offsets[-1]])


_OFFSETS = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}
"""The types whose rows differ in width, and that of the numbers that say where each ends."""
