"""A digest of rows, by which two attempts of a task are compared.

It covers the values and nothing else: Arrow keeps the rows of a slice in the buffers of the whole,
at an offset, and where a value is null its place may hold anything. Nor does it matter in which
chunks the rows come, because that may go by the clock: every column has digests of its own, to
which a chunk adds what it would have added as a part of a larger one. Whole columns are digested;
no value is looked at in Python.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["RowDigest"]


class RowDigest:
    """Equal for two sequences of chunks that have the same rows in the same order."""

    def __init__(self) -> None:
        self._rows = 0
        self._columns: list[_ColumnDigest] = []

    def add(self, chunk: pa.RecordBatch) -> None:
        if not chunk.num_rows:
            return
        if not self._rows:
            self._columns = [_ColumnDigest(kind) for kind in chunk.schema.types]
        self._rows += chunk.num_rows
        for digest, column in zip(self._columns, chunk.columns, strict=True):
            digest.add(column)

    def hexdigest(self) -> str:
        whole = hashlib.blake2b(self._rows.to_bytes(8, "little"), digest_size=16)
        for column in self._columns:
            whole.update(column.digest())
        return whole.hexdigest()


class _ColumnDigest:
    """Of a column: how many values it has, which of them are null, how long each is if that
    differs, and the values; or else its children.
    """

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._count = 0
        self._nulls, self._lengths, self._values = (
            hashlib.blake2b(digest_size=16) for _ in range(3)
        )
        self._children: list[_ColumnDigest] = []
        self._as_list: pa.DataType | None = None
        if pa.types.is_struct(kind):
            self._children = [_ColumnDigest(field.type) for field in kind]
        elif pa.types.is_map(kind):
            self._as_list = pa.list_(pa.struct([kind.key_field, kind.item_field]))
            self._children = [_ColumnDigest(self._as_list.value_type)]
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            self._children = [_ColumnDigest(kind.value_type)]

    def digest(self) -> bytes:
        whole = hashlib.blake2b(self._count.to_bytes(8, "little"), digest_size=16)
        for part in (self._nulls, self._lengths, self._values):
            whole.update(part.digest())
        for child in self._children:
            whole.update(child.digest())
        return whole.digest()

    def add(self, column: pa.Array) -> None:
        if not len(column):
            return
        kind, valid = self._kind, None
        if column.null_count:
            # By their numbers, so that columns without nulls have nothing to digest.
            valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
            self._nulls.update((np.flatnonzero(~valid) + self._count).data)
        self._count += len(column)
        if pa.types.is_struct(kind):
            # flatten() rather than field(): it applies the offset and the nulls of the struct.
            for digest, child in zip(self._children, column.flatten(), strict=True):
                digest.add(child)
        elif self._children:
            if self._as_list is not None:
                column = column.cast(self._as_list)
            lengths = pc.list_value_length(column).fill_null(0)
            self._lengths.update(lengths.to_numpy(zero_copy_only=False).tobytes())
            self._children[0].add(column.flatten())
        elif pa.types.is_boolean(kind):
            values = column.fill_null(False).to_numpy(zero_copy_only=False)
            self._values.update(np.ascontiguousarray(values).data)
        elif not pa.types.is_null(kind):
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
            self._values.update(np.ascontiguousarray(values).data)
            return
        _, bounds, data = column.buffers()
        offsets = np.frombuffer(bounds, offset_type)[first : last + 1]
        lengths = np.diff(offsets)
        if valid is not None and lengths[~valid].any():
            self._add_buffers(column.fill_null(b"" if "binary" in str(kind) else ""), None)
            return
        self._lengths.update(lengths.data)
        if data is not None:
            self._values.update(memoryview(data)[offsets[0] : offsets[-1]])


_OFFSETS = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}
"""The types whose rows differ in width, and that of the numbers that say where each ends."""
