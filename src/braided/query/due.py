"""Timers and what else makes a batch without input: which slots are due, and when to ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from braided.control.routing.table import RoutingTable
from braided.flow.graph import Flow
from braided.spark.offset_log import BatchTimes
from braided.store.history.manifest import View
from braided.tasks.first_state import FirstState
from braided.tasks.timers import clock_ms

__all__ = ["Alarm", "due_slots", "next_alarm"]


def due_slots(
    flow: Flow,
    view: View,
    tables: Mapping[str, RoutingTable],
    times: BatchTimes,
    initial: Mapping[str, FirstState],
) -> dict[str, dict[int, list[int]]]:
    """The slots whose next timer has come, by operator and channel."""
    found: dict[str, dict[int, list[int]]] = {}
    for step in flow.steps:
        known = view.operators.get(step.name)
        if step.visits_all_slots:
            found[step.name] = _all_slots(tables[step.name])
            continue
        timers = known.due if known is not None else {}
        if step.fires_at_start and step.name in initial:
            timers = initial[step.name].due
        if not timers or not step.fires:
            continue
        now_ms = clock_ms(step.time_mode, times)
        channels = found.setdefault(step.name, {})
        owners = tables[step.name].slots
        for slot, ms in timers.items():
            if ms <= now_ms:
                channels.setdefault(int(owners[slot]), []).append(slot)
    return found


class Alarm(NamedTuple):
    """Whether a batch is needed now, and when one will be."""

    now: bool
    due_ms: int | None


def next_alarm(
    flow: Flow, view: View, watermark_ms: int, had_input: bool, empty_batches: bool
) -> Alarm:
    """What the timers of a view ask for; `had_input` is whether its batch had rows, and
    `empty_batches` whether there are batches for the sake of the watermark alone.
    """
    now, due_ms = False, None
    for step in flow.steps:
        known = view.operators.get(step.name)
        waits = known is not None and bool(known.due) and step.fires
        if had_input and step.minds_watermark and (waits or empty_batches):
            # Rows may have moved the watermark, even rows that never reached this step, and only
            # the next batch will tell. As in Spark, that batch comes even if no timer waits for
            # it: from then on rows behind the watermark are late, whenever they arrive.
            now = True
        if known is None or not waits:
            continue
        first = min(known.due.values())
        if step.time_mode != "EventTime":
            due_ms = first if due_ms is None else min(due_ms, first)
        elif first <= watermark_ms:
            now = True
    return Alarm(now, due_ms)


def _all_slots(table: RoutingTable) -> dict[int, list[int]]:
    """Every slot of a table, by channel."""
    return {
        channel: np.flatnonzero(table.slots == channel).tolist()
        for channel in range(table.channels)
    }
