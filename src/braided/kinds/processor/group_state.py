"""`applyInPandasWithState` as a processor: one value of state and one timer per key.

The function gets Spark's own GroupState. What it left there becomes the key's state when it is
done. Spark lets a key time out once the clock is past the time that was set, a timer fires when it
is reached: so the timer is set a millisecond later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import StructType

__all__ = ["GroupStateProcessor"]


class GroupStateProcessor(StatefulProcessor):
    """Runs a function with a GroupState."""

    always_timed = True
    """It is told the time also where it has no timers."""

    def __init__(
        self,
        function: Callable[..., Any],
        schema: StructType,
        timeout: str,
        columns: list[str],
        width: int,
        has_watermark: bool,
    ) -> None:
        self.function = function
        self._schema = schema
        self._timeout = timeout
        self._columns = columns
        self._width = width
        self._has_watermark = has_watermark

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._value = handle.getValueState("groupState", self._schema)

    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[Any]:
        return self._call(key, rows, timerValues, False)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Any]:
        empty = pd.DataFrame(columns=self._columns)
        return self._call(tuple(key), iter([empty]), timerValues, True)

    def _call(
        self, key: Any, rows: Iterator[Any], times: TimerValues, timed_out: bool
    ) -> Iterator[Any]:
        value: Any = self._value.get()
        state = GroupState(
            optionalValue=value,
            batchProcessingTimeMs=times.getCurrentProcessingTimeInMs(),
            eventTimeWatermarkMs=times.getCurrentWatermarkInMs() if self._has_watermark else -1,
            timeoutConf=self._timeout,
            hasTimedOut=timed_out,
            watermarkPresent=self._has_watermark,
            defined=value is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=self._schema,
        )
        for frame in self._checked(self.function(key, rows, state)):
            if len(frame):
                yield frame
        self._keep(state, timed_out)

    def _keep(self, state: GroupState, timed_out: bool) -> None:
        """What the function left becomes the key's state."""
        if state._updated:
            self._value.update(tuple(state._value))
        elif state._removed:
            self._value.clear()
        if self._timeout == GroupStateTimeout.NoTimeout:
            return
        set_to = int(state._timeout_timestamp)
        if state._updated or state._removed or timed_out or set_to != GroupState.NO_TIMESTAMP:
            for ms in list(self._handle.listTimers()):
                self._handle.deleteTimer(ms)
        if set_to != GroupState.NO_TIMESTAMP:
            self._handle.registerTimer(set_to + 1)

    def _checked(self, given: Any) -> Iterator[pd.DataFrame]:
        if isinstance(given, pd.DataFrame) or not isinstance(given, Iterable):
            raise PySparkTypeError(
                errorClass="UDF_RETURN_TYPE",
                messageParameters={
                    "expected": "iterable of pandas.DataFrame",
                    "actual": type(given).__name__,
                },
            )
        for frame in given:
            if not isinstance(frame, pd.DataFrame):
                raise PySparkTypeError(
                    errorClass="UDF_RETURN_TYPE",
                    messageParameters={
                        "expected": "iterator of pandas.DataFrame",
                        "actual": f"iterator of {type(frame).__name__}",
                    },
                )
            width = len(frame.columns)
            if width != self._width and not (width == 0 and frame.empty):
                raise PySparkRuntimeError(
                    errorClass="RESULT_COLUMN_SCHEMA_MISMATCH",
                    messageParameters={"expected": str(self._width), "actual": str(width)},
                )
            yield frame
