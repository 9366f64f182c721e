"""From the reports of a batch to the sample that the controller takes.

What the reports do not say comes from Spark: when the batch was triggered, from its offset log, and
what waits in the source, from its progress, where a source tells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from braided.control.measure.estimator import SlotTotals, slot_totals
from braided.control.measure.view import FlowSample, HeavyKey, OperatorSample
from braided.control.routing.table import Loads
from braided.flow.graph import Flow
from braided.flow.route import can_be_pinned
from braided.flow.upstream import upstream_of
from braided.hosts.transition import HostFacts
from braided.store.history.manifest import OperatorVersion, View
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.outcome import Outcome
from braided.tasks.reports import ChannelReport, KeyRows

__all__ = ["COLD_BATCHES", "EAGER_S", "MERGED_MAX", "Sampler", "totals_of", "waiting_rows"]

EAGER_S = 1.0
"""How long a batch may take where no trigger says how often one is wanted."""
COLD_BATCHES = 1
"""The batches of a process of which the controller gets no sample; the estimator forgets them too,
as soon as there are others.
"""


MERGED_MAX = 4 << 20
"""Bytes of split keys that tasks may report in a batch: Spark's scheduler waits for reports. Keys
of an operator with more are whole again, and stay so while the process lives.
"""


class Sampler:
    """Keeps what a sample needs of the batches before: when they were, and how much state is
    where.
    """

    def __init__(self, flow: Flow, interval_s: float) -> None:
        self._upstream = upstream_of(flow)
        self._order = [step.name for step in flow.steps]
        self._mergers = {
            step.name
            for step in flow.steps
            if step.name in flow.can_split and can_be_pinned(step.key_schema)
        }
        self._interval_s = interval_s or EAGER_S
        self._before: tuple[int, float] | None = None  # batch time (ms) and duration of the last
        self._held: dict[str, tuple[Loads, Loads]] = {}  # keys and bytes of each slot

    def sample(
        self,
        outcome: Outcome,
        view: View,
        ended_s: float,
        waiting: float,
        hosts: HostFacts | None = None,
    ) -> FlowSample | None:
        """The sample of a batch that ended then; None for the first, because it is not known for
        how long its input was collected.
        """
        duration_s = max(0.0, ended_s - outcome.batch_time_ms / 1000)
        before, self._before = self._before, (outcome.batch_time_ms, duration_s)
        carried: dict[str, float] = {}
        for carry in view.carry:
            carried[carry.operator] = carried.get(carry.operator, 0.0) + carry.rows
        totals = totals_of(outcome)
        self._mergers -= {
            name for name, reports in outcome.reports.items() if _merged_bytes(reports) > MERGED_MAX
        }
        operators = []
        for name in self._order:
            # What waits in the source waits for whoever it feeds.
            backlog = carried.get(name, 0.0) + (0.0 if self._upstream[name] else waiting)
            held = self._slots_of(name, view.operators[name], outcome.reports[name])
            operator = _operator(name, outcome, totals[name], held, backlog, name in self._mergers)
            if hosts is not None:
                operator = replace(
                    operator, speeds=hosts.speeds[name], residence=hosts.residence[name]
                )
            operators.append(operator)
        if before is None:
            return None
        collected_s = self._since(before, outcome.batch_time_ms)
        return FlowSample(
            batch=outcome.batch,
            interval_s=self._interval_s,
            collected_s=collected_s,
            duration_s=duration_s,
            operators=tuple(operators),
            upstream=self._upstream,
            latency_s=duration_s + collected_s / 2,
        )

    def collected_s(self, batch_time_ms: int) -> float | None:
        """How long the input of a batch of that time was collected, if it is the next one."""
        before = self._before
        return None if before is None else self._since(before, batch_time_ms)

    def _since(self, before: tuple[int, float], batch_time_ms: int) -> float:
        since_s = max(0.001, (batch_time_ms - before[0]) / 1000)
        # Where Spark had looked for input in vain, it was collected since it looked last.
        return min(since_s, max(self._interval_s, before[1]))

    def _slots_of(
        self, name: str, after: OperatorVersion, reports: Sequence[ChannelReport]
    ) -> tuple[Loads, Loads]:
        """Keys and bytes of each slot: as reported, and evenly spread as long as nobody did."""
        slots = after.meta.slots
        if name not in self._held:
            self._held[name] = (
                np.full(slots, after.keys / slots),
                np.full(slots, after.bytes / slots),
            )
        keys, size = (held.copy() for held in self._held[name])
        for report in reports:
            for slot in report.slots:
                keys[slot.slot], size[slot.slot] = slot.keys, slot.bytes
        self._held[name] = keys, size
        return keys, size


def totals_of(outcome: Outcome) -> dict[str, SlotTotals]:
    """What every operator's slots did in a batch, as its tasks reported it."""
    return {
        name: slot_totals(
            outcome.metas[name].slots,
            (
                (
                    [each.slot for each in report.slots],
                    [each.rows for each in report.slots],
                    [each.busy_ns for each in report.slots],
                )
                for report in reports
            ),
        )
        for name, reports in outcome.reports.items()
    }


def _operator(
    name: str,
    outcome: Outcome,
    totals: SlotTotals,
    held: tuple[Loads, Loads],
    backlog: float,
    can_split: bool,
) -> OperatorSample:
    table, reports = outcome.tables[name], outcome.reports[name]
    return OperatorSample(
        name=name,
        table=table,
        rows=totals.rows,
        busy_s=totals.busy_s,
        keys=held[0],
        state_bytes=held[1],
        channel_busy_s=np.array([max(0, report.busy_ns) / 1e9 for report in reports]),
        rows_out=float(sum(report.rows_out for report in reports)),
        backlog_rows=backlog,
        heavy=tuple(_heavy(each) for report in reports for each in report.heavy),
        pinned=frozenset(pin.key for pin in table.pins),
        can_split=can_split,
        cpu_s=_cpu_s(reports),
    )


def _merged_bytes(reports: Sequence[ChannelReport]) -> int:
    """How much state of split keys went to the driver."""
    return sum(
        len(each.record or b"") for report in reports for each in (*report.wholes, *report.partials)
    )


def _cpu_s(reports: Sequence[ChannelReport]) -> float | None:
    measured = [report.cpu_ns for report in reports if report.cpu_ns is not None]
    return sum(measured) / 1e9 if len(measured) == len(reports) else None


def _heavy(seen: KeyRows) -> HeavyKey:
    # Counted and not estimated, so the bounds are the count itself.
    rows = float(seen.rows)
    return HeavyKey(seen.key, seen.place >> PLACE_SHIFT, rows, rows, rows)


def waiting_rows(progress: Mapping[str, Any] | None) -> float:
    """The rows that Spark knows of and has not taken in, where a source tells (Kafka does)."""
    found = 0.0
    for source in (progress or {}).get("sources", ()):
        behind = (source.get("metrics") or {}).get("avgOffsetsBehindLatest")
        if behind is None:
            continue
        topics = source.get("endOffset")
        topics = json.loads(topics) if isinstance(topics, str) else topics
        partitions = sum(len(offsets) for offsets in (topics or {}).values())
        found += float(behind) * max(1, partitions)
    return found
