"""The short way through a chunk: keys whose rows are all in it.

Most keys have few rows and lie in one chunk, between its first key, which may have begun in the
chunk before, and its last, which may go on in the next. For those between, the records of a slot
are read at once and the hooks run in one loop, with no care for what is still open. What comes of
it is the same as when `KeyByKey` opens, calls and closes key by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from braided.errors import StateValueError
from braided.kinds.operator.key_by_key import CALL_ROWS, KeyByKey
from braided.kinds.operator.output import ARROW
from braided.kinds.operator.way import KeyGroup, OperatorParts
from braided.store.slots.layout import RECORD, SUFFIX_BYTES_MAX
from braided.store.slots.slot import SlotState
from braided.tasks.emitter import OUTPUT_ROWS
from braided.tasks.order import Tags

__all__ = ["WholeKeys"]

_SLOT = itemgetter(2)


class WholeKeys:
    """Takes the short way wherever it can, and else goes key by key. It can't keep tags.

    Both loops give a key back as `KeyRunner` does, written out, because a call for each key is a
    good part of what the key costs.
    """

    def __init__(self, parts: OperatorParts) -> None:
        self._parts = parts
        self._key_by_key = KeyByKey(parts)
        self.end = self._key_by_key.end
        self.fire = self._key_by_key.fire
        self.write_dead = self._key_by_key.write_dead

    def run(
        self, rows: Any, tags: Tags | None, groups: Sequence[KeyGroup]
    ) -> Iterator[pa.RecordBatch]:
        by_batch = self._parts.hook.by_batch
        rows_max = CALL_ROWS if by_batch else None
        if not _can_be_short(groups, rows_max, self._parts.keys.split):
            yield from self._key_by_key.run(rows, tags, groups)
            return
        yield from self._key_by_key.run(rows, tags, groups[:1])
        yield from self._key_by_key.end()
        run_slot = self._run_tables if by_batch else self._run_rows
        for slot, suffixes, records, members in self._by_slot(groups[1:-1]):
            yield from run_slot(slot, suffixes, records, members, rows)
        yield from self._key_by_key.run(rows, tags, groups[-1:])

    def _by_slot(
        self, groups: Sequence[KeyGroup]
    ) -> Iterator[tuple[SlotState, list[bytes], list[bytes | None], list[KeyGroup]]]:
        """The keys slot by slot, with their suffixes in it and their records."""
        keys = self._parts.keys
        for number, same_slot in groupby(groups, _SLOT):
            members = list(same_slot)
            if number != keys.slot_number:
                keys.enter(number)
            keys.keys_touched += len(members)
            suffixes = [RECORD + key for _, _, _, key, _ in members]
            yield keys.slot, suffixes, keys.slot.get_many(suffixes), members

    def _run_rows(
        self,
        slot: SlotState,
        suffixes: list[bytes],
        records: list[bytes | None],
        groups: list[KeyGroup],
        rows: list[Any],
    ) -> Iterator[pa.RecordBatch]:
        keys, (hook, _, call, checked), output, _ = self._parts
        runtime, out, detach = keys.runtime, output.rows, output.detach
        lend, take_back, lasting = runtime.open, runtime.close, output.lasting
        ends, owners = output.ends, output.owners
        written: list[bytes] = []
        values: list[bytes] = []
        row = None
        for suffix, record, (begin, end, _, key, key_row) in zip(
            suffixes, records, groups, strict=True
        ):
            lend(key_row, record)
            try:
                for row in rows[begin:end]:
                    for item in call(row) if checked is None else checked(call(row), hook):
                        out.append(item if type(item) is lasting else detach(item))
                    if len(out) >= OUTPUT_ROWS:
                        yield from output.flush()
            except Exception as error:
                raise keys.code.failure(error, key_row, row) from None
            keys.row = row
            if len(out) != ends[-1]:
                ends.append(len(out))
                owners.append(key_row)
            try:
                left = take_back()
            except StateValueError as error:
                raise keys.unfit(error) from None
            if left is not record:
                if left is None:
                    slot.delete(suffix)
                else:
                    written.append(suffix)
                    values.append(left)
            if runtime.added or runtime.removed:
                keys.put_timers(slot, key)
        slot.put_many(written, values)

    def _run_tables(
        self,
        slot: SlotState,
        suffixes: list[bytes],
        records: list[bytes | None],
        groups: list[KeyGroup],
        table: pa.Table,
    ) -> Iterator[pa.RecordBatch]:
        keys, (hook, _, call, checked), output, _ = self._parts
        runtime, out, detach = keys.runtime, output.rows, output.detach
        lend, take_back, lasting = runtime.open, runtime.close, output.lasting
        ends, owners, cut = output.ends, output.owners, table.slice
        written: list[bytes] = []
        values: list[bytes] = []
        for suffix, record, (begin, end, _, key, key_row) in zip(
            suffixes, records, groups, strict=True
        ):
            lend(key_row, record)
            rows = cut(begin, end - begin)
            try:
                for item in call(rows) if checked is None else checked(call(rows), hook):
                    if type(item) is lasting:
                        out.append(item)
                    elif isinstance(item, ARROW):
                        yield from output.emit_table(item)
                        continue
                    else:
                        out.append(detach(item))
                    if len(out) >= OUTPUT_ROWS:
                        yield from output.flush()
            except Exception as error:
                raise keys.code.failure(error, key_row, rows) from None
            if len(out) != ends[-1]:
                ends.append(len(out))
                owners.append(key_row)
            try:
                left = take_back()
            except StateValueError as error:
                raise keys.unfit(error) from None
            if left is not record:
                if left is None:
                    slot.delete(suffix)
                else:
                    written.append(suffix)
                    values.append(left)
            if runtime.added or runtime.removed:
                keys.put_timers(slot, key)
        slot.put_many(written, values)


def _can_be_short(
    groups: Sequence[KeyGroup], rows_max: int | None, split: frozenset[bytes]
) -> bool:
    """Whether all keys but the first and the last of a chunk can be gone through at once.

    Not where one of them has more rows than `onBatch` is given at once, nor with keys too long to
    be read without their record, nor if a key comes twice: its record would have been read too
    early. Nor if a key is split: what comes of it is not put into the slot.
    """
    if len(groups) < 3:
        return False
    if rows_max is not None and max(end - begin for begin, end, _, _, _ in groups) > rows_max:
        return False
    keys = [key for _, _, _, key, _ in groups]
    if split and not split.isdisjoint(keys):
        return False
    return max(map(len, keys)) < SUFFIX_BYTES_MAX and len(set(keys)) == len(keys)
