"""Runs as earlier versions wrote them: Arrow files of (slot, key, value), slots ascending."""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np
import pyarrow as pa

__all__ = ["read_arrow"]


def read_arrow(
    data: pa.Buffer, wanted: Container[int] | None
) -> Iterator[tuple[int, list[bytes], list[bytes | None]]]:
    """The changes of the wanted slots; one that spans record batches comes once for each."""
    reader = pa.ipc.open_file(data)
    for index in range(reader.num_record_batches):
        batch = reader.get_batch(index)
        # Not to_numpy(), which imports pandas.
        numbers = np.frombuffer(batch.column(0).buffers()[1], np.int32, batch.num_rows)
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
        stops = np.append(starts[1:], len(numbers))
        for slot, start, stop in zip(
            numbers[starts].tolist(), starts.tolist(), stops.tolist(), strict=True
        ):
            if wanted is None or slot in wanted:
                part = batch.slice(start, stop - start)
                yield slot, part.column(1).to_pylist(), part.column(2).to_pylist()
