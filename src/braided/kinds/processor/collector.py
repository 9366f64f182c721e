"""What a processor's hooks give out, on its way to Arrow chunks: Rows or data frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql.types import Row

from braided.errors import OutputSchemaError
from braided.kinds.processor.output import check_event_times
from braided.kinds.processor.program import ProcessorProgram
from braided.tasks.emitter import OUTPUT_ROWS, Emitter, WaitingRows
from braided.tasks.order import Tag

__all__ = ["OutputCollector"]

_FRAMES_MAX = 4096


class OutputCollector:
    """Takes output in the order in which it is given out."""

    def __init__(self, program: ProcessorProgram, emitter: Emitter, watermark_ms: int) -> None:
        self._program = program
        self._watermark_ms = watermark_ms
        self._waiting = WaitingRows(emitter, self._encode)
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
        self, items: Iterator[Any], tag: Tag | None, number: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """What was given out for one key or timer, numbered from `number` where it has a tag."""
        is_pandas, waiting = self._program.pandas, self._waiting
        out = waiting.rows
        if not is_pandas and tag is None:
            detach = self._program.rows.detach
            while some := list(islice(items, OUTPUT_ROWS)):
                out += detach(some)
                if len(out) < OUTPUT_ROWS:
                    return  # it has no more: there were fewer than were asked for
                yield from waiting.flush()
            return
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
                yield from waiting.flush()
                self._rows = 0

    @property
    def rows_waiting(self) -> int:
        """Rows that wait, where they have tags."""
        return self._rows

    def flush(self) -> Iterator[pa.RecordBatch]:
        """At the end: all that still waits."""
        if self._waiting.rows:
            yield from self._waiting.flush()

    def _encode(self, waiting: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        program = self._program
        chunks = (
            program.frames.encode(waiting) if program.pandas else [program.rows.encode(waiting)]
        )
        for chunk in chunks:
            if program.event_time is not None:
                check_event_times(chunk, program.event_time, self._watermark_ms, program.name)
            yield chunk
