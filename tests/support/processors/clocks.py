"""Timers, late rows and what a processor is told of the time.

Event time comes with the rows, so outputs may show it. Of processing time they show only whether
something happened: timers are due at once, or in the batch after, or not within a year.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from support.processors.scenario import Plain, Scenario, at, process

__all__ = ["SCENARIOS", "STILL", "YEAR_MS", "ByTheClock", "ms"]

YEAR_MS = 365 * 24 * 3_600_000

SETS_NEXT = "timers: one sets the next"
CANCELS = "timers: one deletes others that are due"


def ms(second: float) -> int:
    """The event time `at(second)` as timers have it."""
    return 1714564800_000 + round(second * 1000)


class Timers(Plain):
    """Does to timers what its rows say; what a timer does depends on the key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n int")

    def listed(self) -> str:
        return repr(sorted((t - ms(0)) / 1000 for t in self.handle.listTimers()))

    def perform(self, op: str, second: int) -> str:
        match op:
            case "register":
                self.handle.registerTimer(ms(second))
            case "delete":
                self.handle.deleteTimer(ms(second))
            case "list":
                return f"listed {self.listed()}"
        return f"{op} {second}"

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        n = (self.seen.get() or (0,))[0]
        for row in sorted(rows, key=lambda r: r.n):
            n += 1
            what = self.perform(row.op, row.s)
            yield Row(k=key[0], what=what, wm=timerValues.getCurrentWatermarkInMs())
        self.seen.update((n,))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        expired = expiredTimerInfo.getExpiryTimeInMs()
        what = f"fired {(expired - ms(0)) / 1000:g} seen {self.seen.get()} listed {self.listed()}"
        yield Row(k=key[0], what=what, wm=timerValues.getCurrentWatermarkInMs())
        if key[0] == SETS_NEXT and (expired - ms(0)) % 10_000 == 0:
            self.handle.registerTimer(expired + 30_000)
            self.handle.registerTimer(expired - 5_000)
        if key[0] == CANCELS:
            for timer in list(self.handle.listTimers()):
                if timer != expired:
                    self.handle.deleteTimer(timer)
            self.seen.clear()


class InPandas(Timers):
    """Frames in and out; a timer gives two frames, one of them empty."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            for row in frame.sort_values("n").itertuples():
                what = [self.perform(row.op, int(row.s))]
                wm = timerValues.getCurrentWatermarkInMs()
                yield pd.DataFrame({"k": [key[0]], "what": what, "wm": wm})
            seen = (self.seen.get() or (0,))[0]
            self.seen.update((seen + len(frame),))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        rows = Timers.handleExpiredTimer(self, key, timerValues, expiredTimerInfo)
        frame = pd.DataFrame([row.asDict() for row in rows])
        yield frame
        yield frame.head(0)


# The rows of "clock" move the watermark: after the steps it is at -5, 35, 36, 80, 81 seconds.
_STEPS = 5
_CLOCK = (5, 45, 46, 90, 91)
_EVENTS: dict[str, tuple[tuple[tuple[str, int, int], ...], ...]] = {
    # name: for each step, operations as (operation, seconds of the timer, event time)
    "timers: those of a key fire in order": (
        (("register", 30, 5), ("register", 12, 0), ("register", 20, 0), ("list", 0, 0)),
        (("list", 0, 40),),
        (("list", 0, 41),),
    ),
    "timers: registered twice, fires once": (
        (("register", 12, 0), ("register", 12, 0), ("list", 0, 0)),
        (("register", 12, 36),),
    ),
    "timers: fire without rows for the key": ((("register", 12, 1), ("register", 70, 1)),),
    "timers: deleted and listed": (
        (("register", 12, 1), ("register", 14, 1), ("delete", 12, 1), ("delete", 99, 1)),
        (("delete", 14, 40), ("register", 77, 40), ("list", 0, 40)),
        (("list", 0, 47), ("delete", 77, 47), ("list", 0, 47)),
    ),
    "timers: at, before and after the watermark": (
        (),
        (),
        (("register", 34, 47), ("register", 35, 47), ("register", 36, 47), ("list", 0, 47)),
        (("list", 0, 50),),
    ),
    "timers: of long ago and of never": (
        (("register", -10_000, 1), ("register", 10_000_000, 1), ("list", 0, 1)),
        (("list", 0, 40),),
        (("delete", 10_000_000, 50), ("list", 0, 50)),
    ),
    SETS_NEXT: ((("register", 10, 1),),),
    CANCELS: (
        (("register", 12, 0), ("register", 20, 0), ("register", 75, 0)),
        (),
        (("list", 0, 50),),
        (("list", 0, 85),),
    ),
    "late rows are dropped": (
        (("list", 0, 0), ("list", 0, -100)),
        (("list", 0, -5), ("list", 0, -6), ("list", 0, 0)),
        (("list", 0, 35), ("list", 0, 36), ("list", 0, 34)),
        (("list", 0, 1),),
    ),
}


def _rows(step: int) -> tuple[tuple[Any, ...], ...]:
    own = tuple(
        (name, n, op, second, at(time))
        for name, steps in _EVENTS.items()
        if step < len(steps)
        for n, (op, second, time) in enumerate(steps[step])
    )
    return (*own, ("clock", 0, "list", 0, at(_CLOCK[step])))


def _watermark(delay: str) -> Any:
    def prepare(frame: DataFrame) -> DataFrame:
        return frame.withWatermark("t", delay)

    return prepare


def _event_time(
    name: str, processor: StatefulProcessor, *, delay: str = "10 seconds", **more: Any
) -> Scenario:
    mode = more.pop("mode", "update")
    time = more.pop("time", "EventTime")
    pandas = isinstance(processor, InPandas)
    return Scenario(
        name=name,
        schema="k string, n int, op string, s int, t timestamp",
        steps=more.pop("steps", tuple(map(_rows, range(_STEPS)))),
        prepare=_watermark(delay),
        operators=(
            process(
                processor,
                "k string, what string, wm long",
                pandas=pandas,
                time=time,
                mode=mode.capitalize(),
            ),
        ),
        mode=mode,
        **more,
    )


class ByTheClock(Plain):
    """Timers relative to the time of the batch: due, due next, or not for a year."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.rows = handle.getListState("rows", "op string", 3_600_000)
        self.gone = handle.getValueState("gone", "op string", 1)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        now = timerValues.getCurrentProcessingTimeInMs()
        gone = self.gone.get()
        for row in sorted(rows, key=lambda r: r.n):
            self.rows.appendValue((row.op,))
            self.gone.update((row.op,))
            match row.op:
                case "list":
                    years = [round((t - now) / YEAR_MS) for t in self.handle.listTimers()]
                    what = f"listed {sorted(years)}"
                case "cancel":
                    for timer in list(self.handle.listTimers()):
                        self.handle.deleteTimer(timer)
                    what = "cancelled"
                case _:
                    self.handle.registerTimer(now + row.s)
                    what = row.op
            yield Row(k=key[0], what=f"{what}, {gone} before, clock {now > ms(0)}")

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        due = expiredTimerInfo.getExpiryTimeInMs() <= timerValues.getCurrentProcessingTimeInMs()
        yield Row(k=key[0], what=f"fired {due} {[op for (op,) in self.rows.get()]}")
        self.rows.clear()


_BY_THE_CLOCK = {
    "processing time: timers that are due at once": (
        (("past", -1), ("now", 0), ("long ago", -5_000)),
        (("list", 0), ("past", -1)),
    ),
    "processing time: a timer that is due next": ((("soon", 1),), (), (("list", 0),)),
    "processing time: timers that wait a year": (
        (("year", YEAR_MS), ("years", 2 * YEAR_MS), ("list", 0)),
        (("list", 0),),
        (("cancel", 0), ("list", 0)),
    ),
}


class Told(Plain):
    """What a processor is told of time, and how often it was initialised."""

    inits = 0

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.inits += 1

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        now = timerValues.getCurrentProcessingTimeInMs()
        clock = "none" if now == -1 else "clock" if now > ms(0) else repr(now)
        what = f"{sum(1 for _ in rows)} rows, inits {self.inits}, {clock}"
        yield Row(k=key[0], what=what, wm=timerValues.getCurrentWatermarkInMs())


_SOME_LATE = (
    (("a", 0, "", 0, at(100)), ("a", 1, "", 0, at(50))),
    (("a", 0, "", 0, at(95)), ("b", 1, "", 0, at(10)), ("c", 2, "", 0, None)),
)
_TWO_KEYS = (
    (("a", 0, "register", 12, at(1)), ("b", 0, "register", 50, at(2))),
    (("b", 0, "list", 0, at(30)),),
    (("c", 0, "list", 0, at(70)),),
)
# Natively a query with this time mode runs batch after batch, so that it would never be done.
STILL = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}

SCENARIOS = (
    # A timer of the past that a timer has set fires a step later natively, and by itself here.
    _event_time("event time, in rows", Timers(), parts=tuple(_EVENTS), whole=True),
    _event_time("event time, in pandas", InPandas(), parts=tuple(_EVENTS), whole=True),
    _event_time(
        "event time: step by step, append mode, no delay, a restart",
        Timers(),
        steps=_TWO_KEYS,
        mode="append",
        delay="0 seconds",
        restarts={2: None},
    ),
    _event_time("event time: rows are late where no timer waits", Told(), steps=_SOME_LATE),
    _event_time(
        "event time: rows stay where no batch comes for the watermark",
        Told(),
        steps=_SOME_LATE,
        conf=STILL,
    ),
    _event_time("no time mode: late rows stay", Told(), steps=_SOME_LATE, time="None"),
    _event_time(
        "processing time: late rows stay",
        Told(),
        steps=_SOME_LATE,
        time="ProcessingTime",
        conf=STILL,
    ),
    Scenario(
        name="event time: no watermark, no timer fires",
        schema="k string, n int, op string, s int, t timestamp",
        steps=_TWO_KEYS,
        operators=(process(Timers(), "k string, what string, wm long", time="EventTime"),),
    ),
    Scenario(
        name="processing time",
        parts=tuple(_BY_THE_CLOCK),
        schema="k string, n int, op string, s long",
        steps=tuple(
            tuple(
                (name, n, op, delay)
                for name, steps in _BY_THE_CLOCK.items()
                if step < len(steps)
                for n, (op, delay) in enumerate(steps[step])
            )
            for step in range(3)
        ),
        operators=(process(ByTheClock(), "k string, what string", time="ProcessingTime"),),
        restarts={2: None},
        whole=True,
        conf=STILL,
    ),
)
