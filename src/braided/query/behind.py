"""Operators that a batch which was cut leaves behind the watermark.

Rows that an operator left for the next batch lead to rows of those after it, which would be late
there, and come after timers had fired, if the watermark had moved for them meanwhile. So it does
not: tasks that begin when the batch is being ended keep that of the batch before, and the operator
goes on from there. So do rows that an operator would have given out by itself, had its tasks not
kept the watermark: timers that were put off, and results that were not final yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from braided.errors import NondeterministicBatchError
from braided.query.version import Version
from braided.tasks.reports import ChannelReport

__all__ = ["carried_since", "carried_watermarks", "late_watermarks", "left_behind"]


def late_watermarks(version: Version) -> dict[str, int]:
    """By which watermark rows are late for operators that are behind the others."""
    return {
        name: operator.behind_ms
        for name, operator in version.view.operators.items()
        if operator.behind_ms is not None
    }


def carried_watermarks(version: Version) -> dict[str, int]:
    """The watermark at which the oldest row was new, of operators that have rows carried.

    What becomes of such a row may be as old: an operator that is told not to give out rows behind
    the watermark must not be held to one that has moved since.
    """
    return {
        name: operator.carried_ms
        for name, operator in version.view.operators.items()
        if operator.carried_ms is not None
    }


def carried_since(left: Iterable[str], before: Version) -> dict[str, int]:
    """The same after a batch, for the operators that it left rows of."""
    known, late = carried_watermarks(before), late_watermarks(before)
    return {name: known.get(name, late.get(name, before.watermark_ms)) for name in left}


def left_behind(
    ancestors: Mapping[str, frozenset[str]],
    reports: Mapping[str, Sequence[ChannelReport]],
    left: frozenset[str],
    fires: frozenset[str],
    before: Version,
    watermark_ms: int,
) -> dict[str, int]:
    """The operators behind which rows are still to come, each with the watermark that it keeps.

    Still to come are rows that operators in `left` have left, and what those in `fires` give out by
    time, of which tasks kept the watermark.
    """
    known = late_watermarks(before)
    put_off = {name for name in fires if any(each.holds_watermark for each in reports[name])}
    owing = left | put_off
    behind = {}
    for name, each in reports.items():
        late_ms = known.get(name, before.watermark_ms)
        if late_ms >= watermark_ms or ancestors[name].isdisjoint(owing):
            continue
        ahead = [report.channel for report in each if not report.holds_watermark]
        if ahead:
            raise NondeterministicBatchError(
                f"channels {ahead} of operator {name!r} did not hear that the batch was cut before "
                "them, and have let the watermark pass rows that are still to come; the batch is "
                "not committed"
            )
        behind[name] = late_ms
    return behind
