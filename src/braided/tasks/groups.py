"""The rows of a channel as groups: rows of one key that lie together, chunk by chunk.

Rows reach a task sorted by slot and key, so that where a key differs from the one before it a group
begins. A key whose rows are in several chunks has a group in each of them. All this is found out
with whole columns; only a key's bytes are made one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.store.history.manifest import CarryFile
from braided.store.slots.key_codec import KeyCodec
from braided.tasks.carry import CarriedColumns, Cut
from braided.tasks.channel import Channel
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.heavy_keys import HeavyKeys
from braided.tasks.pieces import Grain, Pieces
from braided.tasks.reports import KeyRows

__all__ = ["GroupSource", "GroupedChunk", "group_chunk"]


class GroupedChunk(NamedTuple):
    """A chunk with its groups: where each begins and ends, its slot, its key."""

    chunk: pa.RecordBatch
    begins: list[int]
    ends: list[int]
    slots: list[int]
    keys: list[bytes]
    key_columns: list[pa.Array]
    """The keys once more, as Arrow columns."""
    starts: npt.NDArray[np.int64]
    """The same as `begins`, for numpy."""
    places: npt.NDArray[np.int64]
    """Of each group: its slot and bits of its key's hash."""


def group_chunk(
    chunk: pa.RecordBatch, codec: KeyCodec, key_positions: Sequence[int], by_place: bool = False
) -> GroupedChunk:
    """Finds the groups of a chunk that has at least one row; its last column is the place.

    `by_place` where a key may be in several slots: what it has in two of them is two groups.
    """
    columns = [chunk.column(position) for position in key_positions]
    changes = codec.changes(columns)
    places = chunk.column(chunk.num_columns - 1).to_numpy()
    if by_place:
        changes[1:] |= places[1:] != places[:-1]
    starts = changes.nonzero()[0]
    key_columns = [column.take(pa.array(starts)) for column in columns]
    places = places[starts]
    begins = starts.tolist()
    return GroupedChunk(
        chunk=chunk,
        begins=begins,
        ends=[*begins[1:], chunk.num_rows],
        slots=(places >> PLACE_SHIFT).tolist(),
        keys=codec.encode_batch(key_columns),
        key_columns=key_columns,
        starts=starts,
        places=places,
    )


class GroupSource:
    """Reads a channel's rows group by group, and knows afterwards what they were.

    It lets only as many rows through as the batch is to process, opens the slots that they belong
    to, counts the rows of each, and watches for keys that have very many.
    """

    def __init__(
        self,
        channel: Channel,
        codec: KeyCodec,
        key_positions: Sequence[int],
        width: int,
        grain: Grain,
        gather: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None,
    ) -> None:
        """`width`: how many columns of a row are its own; key positions are counted from them.
        `grain`: where the task can stop. `gather`: brings rows together before they are grouped.
        """
        spec = channel.spec
        self._channel = channel
        self._codec = codec
        self._key_positions = [spec.first_column + position for position in key_positions]
        self._carried = CarriedColumns(spec.order, spec.keep_order, width, channel.number)
        self._grain = grain
        self._gather = gather
        self._heavy = HeavyKeys()
        self._cut: Cut | None = None

    def read(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[GroupedChunk]:
        channel = self._channel
        grain = self._grain if channel.line.can_stop else Grain.CHUNK
        pieces = Pieces(channel.name, grain)
        self._cut = Cut(chunks, channel.batch.cut, channel.line, pieces)
        split = channel.batch.split.get(channel.name)
        rows = channel.chunks_with_rows(self._cut.through())
        for chunk in rows if self._gather is None else self._gather(rows):
            with channel.meter.sharing():
                grouped = group_chunk(chunk, self._codec, self._key_positions, bool(split))
                rows_by_slot = _rows_by_slot(grouped)
                channel.state.open_slots({slot for slot, _ in rows_by_slot})
                channel.meter.count(rows_by_slot)
                self._heavy.add(grouped.keys, grouped.places, grouped.starts, chunk.num_rows)
            yield grouped

    def heaviest(self) -> tuple[KeyRows, ...]:
        """The keys that had most of the rows that were let through."""
        return self._heavy.heaviest(self._channel.rows_in)

    @property
    def timers_wait(self) -> bool:
        """Whether rows are left for the next batch, here or before this operator: timers come
        after the rows.
        """
        is_cut = self._cut is not None and self._cut.is_cut
        return is_cut or self._channel.line.holds_watermark

    def keep_rest(self) -> CarryFile | None:
        """Writes the rows that were not let through, for the next batch."""
        assert self._cut is not None, "nothing has been read"
        channel = self._channel
        name = f"carry/{channel.attempt}.arrow"
        return self._cut.keep(channel.files, channel.name, name, self._carried)


def _rows_by_slot(grouped: GroupedChunk) -> list[tuple[int, int]]:
    """Slots with their numbers of rows. They come in runs as keys do, so nothing is sorted."""
    slots = grouped.places >> PLACE_SHIFT
    firsts = np.flatnonzero(np.diff(slots, prepend=-1))
    counts = np.diff(grouped.starts[firsts], append=grouped.chunk.num_rows)
    return list(zip(slots[firsts].tolist(), counts.tolist(), strict=True))
