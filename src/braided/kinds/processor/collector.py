"""What a processor's hooks give out, on its way to Arrow chunks: Rows or data frames."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.types import Row

from braided.errors import BraidedError, OutputSchemaError
from braided.kinds.processor.output import check_event_times
from braided.kinds.processor.program import ProcessorProgram
from braided.tasks.emitter import OUTPUT_ROWS, Emitter, WaitingRows
from braided.tasks.failure import Words
from braided.tasks.order import Tag
from braided.tasks.slot_meter import SlotMeter
from braided.tasks.user_code import UserCode

__all__ = ["OutputCollector"]

_FRAMES_MAX = 4096


class OutputCollector:
    """Takes output in the order in which it is given out."""

    def __init__(
        self,
        program: ProcessorProgram,
        emitter: Emitter,
        watermark_ms: int,
        code: UserCode,
        meter: SlotMeter,
    ) -> None:
        self._program = program
        self._code = code
        self._ends: list[int] = []
        """How many rows or frames waited when a key was done with, and in `_owners` which key it
        was: one that does not fit is found when many are encoded at once.
        """
        self._owners: list[Any] = []
        self._watermark_ms = watermark_ms
        self._waiting = WaitingRows(emitter, self._encode, meter)
        self.entered = self._waiting.entered
        self._rows = 0
        """How many wait, where that is not to be seen from how many frames there are."""

    def checked(self, result: Any, hook: str) -> Iterator[Any]:
        """What a hook returned, as an iterator; a generator needs no such look."""
        refused = isinstance(result, str | bytes | Row | dict | pd.DataFrame)
        if isinstance(result, Iterable) and not refused:
            return iter(result)
        raise OutputSchemaError(
            f"processor {self._program.name!r}: {hook} returned {type(result).__name__} "
            f"{result!r:.80}; it must return an iterator of "
            f"{'pandas.DataFrames' if self._program.pandas else 'Rows'}"
        )

    def collect(
        self, items: Iterator[Any], key: Any, tag: Tag | None, number: int = 0
    ) -> Iterable[pa.RecordBatch]:
        """What was given out for one key or timer, numbered from `number` where it has a tag.

        To be gone through before anything else is collected. Most keys give out a few rows, which
        wait: those are taken at once, and nothing is left to go through.
        """
        if self._program.pandas or tag is not None:
            return self._collect(items, key, tag, number)
        if self._take(items):
            return self._take_on(items, key)
        self._owners.append(key)
        self._done()
        return ()

    def _done(self) -> None:
        """The key that was collected last has no more."""
        end = len(self._waiting.rows)
        if end == (self._ends[-1] if self._ends else 0):
            self._owners.pop()  # it gave out nothing, or nothing that still waits
        else:
            self._ends.append(end)

    def _take(self, items: Iterator[Any]) -> bool:
        """Takes rows without tags; False if there were no more than these."""
        out = self._waiting.rows
        out += self._program.rows.detach(list(islice(items, OUTPUT_ROWS)))
        # There were fewer than were asked for, if fewer wait.
        return len(out) >= OUTPUT_ROWS

    def _take_on(self, items: Iterator[Any], key: Any) -> Iterator[pa.RecordBatch]:
        """The key has given out rows that fill a chunk, and may have more."""
        self._owners.append(key)
        yield from self._flush()
        while self._take(items):
            yield from self._flush()
        self._done()

    def _collect(
        self, items: Iterator[Any], key: Any, tag: Tag | None, number: int
    ) -> Iterator[pa.RecordBatch]:
        """Data frames, and rows with tags."""
        is_pandas, waiting = self._program.pandas, self._waiting
        out = waiting.rows
        self._owners.append(key)
        for item in items:
            rows = 1
            if is_pandas:
                columns = self._program.frames.columns(item)
                rows = len(item)
                if not rows:
                    continue
                out.append(columns)  # and not the frame: what is kept has to be looked through
            else:
                out += self._program.rows.detach([item])
            if tag is not None:
                waiting.tags += [(*tag, number + i) for i in range(rows)]
                number += rows
            self._rows += rows
            if self._rows >= OUTPUT_ROWS or len(out) >= _FRAMES_MAX:
                yield from self._flush()
                self._rows = 0
        self._done()

    @property
    def rows_waiting(self) -> int:
        """Rows that wait, where they have tags."""
        return self._rows

    def flush(self) -> Iterator[pa.RecordBatch]:
        """At the end: all that still waits."""
        if self._waiting.rows:
            yield from self._flush()

    def _flush(self) -> Iterator[pa.RecordBatch]:
        yield from self._waiting.flush()
        # The key that is at hand goes on.
        del self._owners[: len(self._ends)], self._ends[:]

    def _encode(self, waiting: Sequence[Any]) -> list[pa.RecordBatch]:
        try:
            return list(self._chunks(waiting))
        except OutputSchemaError as error:
            raise self._failure_of_first_misfit(waiting, error) from None

    def _failure_of_first_misfit(
        self, waiting: Sequence[Any], error: OutputSchemaError
    ) -> BraidedError:
        """The error of the first row, or frame, that does not fit by itself."""
        first = 0
        for i, each in enumerate(waiting):
            try:
                list(self._chunks([each]))
            except OutputSchemaError as single:
                first, error = i, single
                break
        row = waiting[first]
        if self._program.pandas:
            frame = dict(zip(self._program.frames.names, map(list, row), strict=True))
            row = Words(f"{len(row[0])} rows in a DataFrame of {frame}")
        return self._code.failure(error, self._owners[bisect_right(self._ends, first)], row)

    def _chunks(self, waiting: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        program = self._program
        chunks = (
            program.frames.encode(waiting) if program.pandas else [program.rows.encode(waiting)]
        )
        for chunk in chunks:
            if program.event_time is not None:
                check_event_times(chunk, program.event_time, self._watermark_ms, program.name)
            yield chunk
