"""The "braided" section of a query's progress."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from braided.control.routing.balance import imbalance
from braided.control.routing.table import Loads, RoutingTable
from braided.steering.control_thread import ControlThread
from braided.store.history.manifest import View
from braided.tasks.reports import ChannelReport

__all__ = ["ProgressLog", "StepTimes", "section"]

_KEPT = 200
_DONE = (
    "rows",
    "rowsOut",
    "deadLetters",
    "lateRows",
    "keysTouched",
    "rowsUpdated",
    "rowsRemoved",
    "commitMs",
    "changelogBytes",
    "snapshotBytes",
    "moves",
    "slotsOpened",
    "cacheHits",
    "rolledBack",
    "caughtUp",
    "rebuilt",
    "bytesCaughtUp",
    "waitedMs",
    "cacheErrors",
)
"""What an operator did in a batch, as against how it is."""
_OF_BATCHES = ("afterCut", "cluster", "cut", "migration", "sameBatch")
"""Parts that only a batch has."""


class StepTimes:
    """How long each step of a batch took, in ms."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._within = 0.0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A step inside another counts for itself and not for that one."""
        begun = time.perf_counter()
        outer, self._within = self._within, 0.0
        try:
            yield
        finally:
            spent = (time.perf_counter() - begun) * 1000
            self.ms[name] = round(self.ms.get(name, 0.0) + spent - self._within, 2)
            self._within = outer + spent


class ProgressLog:
    """The newest sections by batch id, to go with Spark's progress of the same batch."""

    def __init__(self, control: ControlThread, first: Mapping[str, Any]) -> None:
        """`first`: how things are before the first batch."""
        self._control = control
        self._first = dict(first)
        self._sections: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def add(self, batch: int, content: dict[str, Any]) -> None:
        self._sections[batch] = content
        while len(self._sections) > _KEPT:
            self._sections.popitem(last=False)

    def get(self, batch: int) -> dict[str, Any] | None:
        """What a batch showed of itself, and what the controller has said about it since."""
        content = self._sections.get(batch)
        if content is None or content["redelivered"]:
            return content
        return {**content, "control": self._control.said_of(batch) or content["control"]}

    def published_again(self, batch: int) -> dict[str, Any]:
        """Of a batch that was computed before this start: all as it has left it, and nothing done,
        since nobody knows any more what it did.
        """
        found = self.idle(batch + 1)
        assert found is not None, "only the newest batch before the start is published again"
        return {**found, "redelivered": True}

    def idle(self, batch: int) -> dict[str, Any] | None:
        """For a progress without a batch, when `batch` is still to come: all as the batch before
        left it, and nothing done. None where that is not known any more.
        """
        before = self.get(batch - 1)
        if before is None or before["redelivered"]:
            before = self._first
        if before.get("batchId") != batch - 1:
            return None
        operators = {
            name: {
                **operator,
                **dict.fromkeys(_DONE, 0),
                "busyMs": [0.0] * operator["channels"],
                "imbalance": 1.0,
            }
            for name, operator in before["operators"].items()
        }
        shown = {name: part for name, part in before.items() if name not in _OF_BATCHES}
        return {**shown, "operators": operators, "stepsMs": {}}


def section(
    view: View,
    tables: Mapping[str, RoutingTable],
    reports: Mapping[str, list[ChannelReport]],
    moved: Mapping[str, int],
    loads: Mapping[str, Loads],
    steps: StepTimes,
    late: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """What one batch shows of itself; `late` has the rows that did not even reach a task."""
    late = {} if late is None else late
    operators = {}
    for name, channels in reports.items():
        after = view.operators[name]
        busy_ms = [round(report.busy_ns / 1e6, 2) for report in channels]
        mean = sum(busy_ms) / len(busy_ms) if busy_ms else 0.0
        operators[name] = {
            "channels": tables[name].channels,
            "slots": after.meta.slots,
            "epoch": tables[name].epoch,
            "rows": sum(r.rows_in for r in channels),
            "rowsOut": sum(r.rows_out for r in channels),
            "deadLetters": sum(r.dead.rows for r in channels if r.dead is not None),
            "lateRows": late.get(name, 0) + sum(r.rows_late for r in channels),
            "keysTouched": sum(r.keys_touched for r in channels),
            "rowsUpdated": sum(r.rows_updated for r in channels),
            "rowsRemoved": sum(r.rows_removed for r in channels),
            "keys": after.keys,
            "stateBytes": after.bytes,
            "changelogBytes": sum(r.log.bytes for r in channels if r.log is not None),
            "snapshotBytes": sum(r.snap.bytes for r in channels if r.snap is not None),
            "busyMs": busy_ms,
            "commitMs": round(sum(r.commit_ns for r in channels) / 1e6, 2),
            "imbalance": round(max(busy_ms) / mean, 3) if mean else 1.0,
            "slotImbalance": round(imbalance(tables[name], loads[name]), 3),
            "moves": moved.get(name, 0),
            "slotsOpened": sum(r.slots_opened for r in channels),
            "cacheHits": sum(r.cache_hits for r in channels),
            "rolledBack": sum(r.rolled_back for r in channels),
            "caughtUp": sum(r.caught_up for r in channels),
            "rebuilt": sum(r.rebuilt for r in channels),
            "bytesCaughtUp": sum(r.bytes_caught_up for r in channels),
            "waitedMs": round(sum(r.waited_ns for r in channels) / 1e6, 2),
            "cacheErrors": sum(r.cache_errors for r in channels),
        }
    return {
        "batchId": view.batch,
        "redelivered": False,
        "operators": operators,
        "carryRows": sum(carried.rows for carried in view.carry),
        "stepsMs": steps.ms,
    }
