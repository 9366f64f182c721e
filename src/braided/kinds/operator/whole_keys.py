"""The short way through a chunk: keys whose rows are all in it.

Most keys have few rows and lie in one chunk, between its first key, which may have begun in the
chunk before, and its last, which may go on in the next. For those between, the records of a slot
are read at once and the hooks run in one loop, with no care for what is still open. What comes of
it is the same as when `ChannelRun` opens, calls and closes key by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from braided.kinds.operator.run import ARROW, CALL_ROWS, OUTPUT_ROWS, ChannelRun, Group
from braided.store.slots.keys import RECORD, SUFFIX_BYTES_MAX
from braided.store.slots.slot import SlotState

__all__ = ["WholeKeysRun"]

_SLOT = itemgetter(2)


class WholeKeysRun(ChannelRun):
    """A task that takes the short way wherever it can."""

    def _run_rows(
        self, rows: list[Any], tags: Any, groups: Sequence[Group]
    ) -> Iterator[pa.RecordBatch]:
        if not _can_be_short(groups):
            yield from super()._run_rows(rows, tags, groups)
            return
        yield from super()._run_rows(rows, tags, groups[:1])
        self._close_key()
        for in_slot in self._by_slot(groups[1:-1]):
            yield from self._rows_of_slot(*in_slot, rows)
        yield from super()._run_rows(rows, tags, groups[-1:])

    def _run_tables(
        self, table: pa.Table, tags: Any, groups: Sequence[Group]
    ) -> Iterator[pa.RecordBatch]:
        if not _can_be_short(groups, CALL_ROWS):
            yield from super()._run_tables(table, tags, groups)
            return
        yield from super()._run_tables(table, tags, groups[:1])
        yield from self._call_batch()
        self._close_key()
        for in_slot in self._by_slot(groups[1:-1]):
            yield from self._tables_of_slot(*in_slot, table)
        yield from super()._run_tables(table, tags, groups[-1:])

    def _by_slot(
        self, groups: Sequence[Group]
    ) -> Iterator[tuple[SlotState, list[bytes], list[bytes | None], list[Group]]]:
        """The keys slot by slot, with their places in it and their records."""
        for number, members in groupby(groups, _SLOT):
            keys = list(members)
            if number != self.slot_number:
                self._enter_slot(number)
            slot = self.slot
            assert slot is not None
            self.rows[number] += keys[-1][1] - keys[0][0]
            self.keys_touched += len(keys)
            suffixes = [RECORD + key for _, _, _, key, _ in keys]
            yield slot, suffixes, slot.get_many(suffixes), keys

    def _rows_of_slot(
        self,
        slot: SlotState,
        suffixes: list[bytes],
        raws: list[bytes | None],
        keys: list[Group],
        rows: list[Any],
    ) -> Iterator[pa.RecordBatch]:
        call, checked, out = self.call, self.checked, self.out
        lend, detach = self.runtime.open, self.program.encoder.detach
        row = None
        for suffix, raw, (begin, end, _, key, key_row) in zip(suffixes, raws, keys, strict=True):
            lend(key_row, raw)
            try:
                for row in rows[begin:end]:
                    given = call(row) if checked is None else checked(call(row), "onRow")
                    out.extend(map(detach, given))
                    if len(out) >= OUTPUT_ROWS:
                        yield self._flush()
            except Exception as error:
                raise self._failed(error, key_row, row) from None
            self._put(slot, suffix, key, raw)

    def _tables_of_slot(
        self,
        slot: SlotState,
        suffixes: list[bytes],
        raws: list[bytes | None],
        keys: list[Group],
        table: pa.Table,
    ) -> Iterator[pa.RecordBatch]:
        call, checked, out = self.call, self.checked, self.out
        lend, detach = self.runtime.open, self.program.encoder.detach
        for suffix, raw, (begin, end, _, key, key_row) in zip(suffixes, raws, keys, strict=True):
            lend(key_row, raw)
            rows = table.slice(begin, end - begin)
            try:
                given = call(rows) if checked is None else checked(call(rows), "onBatch")
                for item in given:
                    if isinstance(item, ARROW):
                        yield from self._flush_arrow(item, 0)
                        continue
                    out.append(detach(item))
                    if len(out) >= OUTPUT_ROWS:
                        yield self._flush()
            except Exception as error:
                raise self._failed(error, key_row, rows) from None
            self._put(slot, suffix, key, raw)

    def _put(self, slot: SlotState, suffix: bytes, key: bytes, raw: bytes | None) -> None:
        """Writes the key that has the operator, unless it is as it was."""
        record = self._record()
        if record is not raw:
            if record is None:
                slot.delete(suffix)
            else:
                slot.put(suffix, record)
        if self.runtime.added or self.runtime.removed:
            self._put_timers(slot, key)


def _can_be_short(groups: Sequence[Group], rows_max: int | None = None) -> bool:
    """Whether all keys but the first and the last of a chunk can be gone through at once.

    Not where one of them has more rows than `onBatch` is given at once, nor with keys too long to
    be read without their record, nor if a key comes twice: its record would have been read too
    early.
    """
    if len(groups) < 3:
        return False
    if rows_max is not None and max(end - begin for begin, end, _, _, _ in groups) > rows_max:
        return False
    keys = [key for _, _, _, key, _ in groups]
    return max(map(len, keys)) < SUFFIX_BYTES_MAX and len(set(keys)) == len(keys)
