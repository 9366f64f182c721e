"""Spark's own streaming query, for objects that are made before it is started, or outlive it.

The function that Spark calls for every batch exists before the query does, and has to know later
whether the query still runs and what its progress says. What Spark was given to call it keeps long
after the query has ended, until its JVM collects garbage, so that must be able to let go.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.accumulators import Accumulator, _accumulatorRegistry
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["BatchCall", "QueryHandle", "begin_with", "call_at_end", "forget_accumulator"]


class QueryHandle:
    """A query that is there from `attach` on; before that, it counts as running."""

    def __init__(self) -> None:
        self._query: StreamingQuery | None = None
        self._attached = threading.Event()

    def attach(self, query: StreamingQuery) -> None:
        self._query = query
        self._attached.set()

    def awaited(self, timeout_s: float) -> StreamingQuery | None:
        """The query once it is there, which takes a moment when its first batch runs at once."""
        self._attached.wait(timeout_s)
        return self._query

    def is_active(self) -> bool:
        return self._query is None or self._query.isActive

    def has_failed(self) -> bool:
        """Whether it ended with an error, as far as Spark can still be asked."""
        if self._query is None:
            return False
        try:
            return self._query.exception() is not None
        except (Py4JError, OSError):
            return True

    def planned(self, timeout_s: float) -> list[str] | None:
        """Where the sources are after the batch that runs, as Spark itself knows it, in the words
        of its log; None if it can't be asked.
        """
        query = self.awaited(timeout_s)
        if query is None:
            return None
        try:
            execution = query._jsq.streamingQuery()
            ends, sources = execution.availableOffsets(), execution.sources()
            found = [ends.get(sources.apply(number)) for number in range(sources.size())]
            return [str(end.get().json()) if end.isDefined() else "-" for end in found]
        except (Py4JError, OSError, TypeError):
            return None

    def last_progress(self) -> Mapping[str, Any] | None:
        """As JSON has it, which takes two calls to the JVM and not dozens."""
        progress = None if self._query is None else self._query._jsq.lastProgress()
        return None if progress is None else dict(json.loads(progress.json()))


_TOLD = "_braided_told"


def _is_news(record: logging.LogRecord) -> bool:
    """Not so for an error of a batch: the query's own error tells it, and py4j would log the whole
    way that it took as well, also when a stop has cut a batch off.
    """
    return record.exc_info is None or not getattr(record.exc_info[1], _TOLD, False)


class BatchCall:
    """What Spark calls for every batch, until the query has ended."""

    def __init__(self, run: Callable[[DataFrame, int], None]) -> None:
        logging.getLogger("py4j.clientserver").addFilter(_is_news)  # once, however often it is said
        self._run: Callable[[DataFrame, int], None] | None = run
        self._error: BaseException | None = None

    def __call__(self, df: DataFrame, batch: int) -> None:
        assert self._run is not None, "Spark runs a batch of a query that has ended"
        try:
            self._run(df, batch)
        except BaseException as error:
            self._error = error
            setattr(error, _TOLD, True)
            raise

    def let_go(self) -> None:
        self._run = None
        # PySpark keeps the error as well, and with it all variables of the functions it came by.
        error, self._error = self._error, None
        while error is not None:
            traceback.clear_frames(error.__traceback__)
            error = error.__cause__ or error.__context__


def call_at_end(query: StreamingQuery, then: Callable[[], None]) -> None:
    """Calls a function, in a thread of its own, when a query has ended, however it ends: stopped
    by whomever, out of input, with an error, or together with Spark.

    The thread sleeps in the JVM meanwhile. A listener of Spark's would cost a call from the JVM
    for every progress of every query.
    """

    def wait() -> None:
        with contextlib.suppress(PySparkException, Py4JError, OSError):
            query.awaitTermination()
        then()

    threading.Thread(target=wait, name="braided end of a query", daemon=True).start()


def begin_with(
    error: StreamingQueryException, own: BaseException | None, query: StreamingQuery
) -> None:
    """Has Spark's error of a query begin with the one that it comes from: what happened stands in
    the first line, and not behind what Spark has to say of the function that it called. What it
    says tells the same twice more, with frames of ours and of py4j, and ends with a plan: of that
    stays which query it was.
    """
    error.__cause__ = own
    if own is not None:
        own.__traceback__ = None  # ways through the driver, on which nothing went wrong
        captured: Any = error
        which = f"Query [id = {query.id}, runId = {query.runId}]"
        captured._desc = (
            f"{type(own).__name__}: {own}\n\nSpark says: [STREAM_FAILED] {which} terminated"
        )


def forget_accumulator(accumulator: Accumulator[Any]) -> None:
    """Lets go of an accumulator, which PySpark would keep for good; updates that come late are
    passed over.
    """
    _accumulatorRegistry.pop(accumulator.aid, None)
