"""Judging decisions: each says what it expects, and the first batch with its table tells.

What a decision expects is one number. Where more channels were taken because input waited, it is
throughput; where a table was changed to even out the work, it is the share of the work that the
busiest channel has, which does not depend on how much work there is; where channels were given up,
it is that nobody waits. Four verdicts:

- *effective*: a good part of what was promised has come;
- *overtaken*: the load is another one by now, and the promise was about the old one;
- *unclear*: what was promised is less than chance makes of it from batch to batch;
- *ineffective*: none of these. The kind of decision is held back for that operator, at first for
  some time, for twice as long each time in a row, or until the load has changed.

How long that is says the trigger: a hold is a number of batches, as many as there are in that time
where none is late, and some at least. So none is over sooner than its time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from braided.control.measure.view import OperatorView
from braided.control.routing.balance import channel_times
from braided.control.routing.table import RoutingTable

__all__ = ["Expectation", "Hold", "Verdict", "expect", "extend_hold", "is_held", "judge"]

_CAME_TRUE = 0.2
"""The least part of a promised change that has to come."""
_STILL_TRUE = 0.25
"""The least part of a promise that the load of today must still hold out."""
_OTHER_LOAD = 0.2
"""By how much the arrival rate changes before it is another load."""
_CHANCE = 3.0
"""Standard deviations of a channel's rows that a promise must be worth to be judged."""
_WAITS = 0.2
_HOLD_S = {"scale-up": 60.0}
_HOLD_ELSE_S = 10.0
"""How long a kind of decision waits at first: who takes channels in vain pays for it twice."""
_HOLD_BATCHES_LEAST = 4
"""However long batches are: in fewer nothing can have come of anything else."""
_HOLD_DOUBLINGS = 4


@dataclass(frozen=True, eq=False)
class Expectation:
    """One number, as it was and as it should be, under the load of then; without an arrival rate,
    under that of the batch by which it is judged.
    """

    decision: int
    kind: str
    metric: str
    before: float
    expected: float
    arrival_rate: float | None
    interval_s: float
    table: RoutingTable  # the one that was given up


class Hold(msgspec.Struct, frozen=True):
    """A kind of decision that did not work: until when it waits, how often, at what load."""

    until: int
    times: int
    arrival_rate: float


@dataclass(frozen=True)
class Verdict:
    """One of the four words, and the number that was seen."""

    word: str
    observed: float | None


def expect(
    decision: int, kind: str, operator: OperatorView, after: RoutingTable, interval_s: float
) -> Expectation | None:
    """What a change to that table should bring; nothing where there is nothing to measure."""
    if operator.total_load <= 0:
        return None
    share_before = _busiest_share(operator.table, operator)
    share_after = _busiest_share(after, operator)
    if after.channels > operator.channels and operator.congestion > _WAITS:
        # No more than the work that is there.
        factor = min(share_before / share_after, 1 / (1 - operator.congestion))
        metric, before = "throughput", operator.throughput
        expected = before * factor
    elif after.channels < operator.channels:
        metric, before, expected = "congestion", operator.congestion, 0.0
    else:
        metric, before, expected = "busiest_share", share_before, share_after
    return Expectation(
        decision=decision,
        kind=kind,
        metric=metric,
        before=before,
        expected=expected,
        arrival_rate=operator.arrival_rate,
        interval_s=interval_s,
        table=operator.table,
    )


def judge(expectation: Expectation, operator: OperatorView) -> Verdict:
    """What has come of an expectation, by the operator as it is seen now."""
    if expectation.metric == "busiest_share":
        return _judge_balance(expectation, operator)
    if expectation.metric == "congestion":
        observed, is_good = operator.congestion, operator.congestion <= _WAITS
    else:
        observed = operator.throughput
        gained = observed - expectation.before
        # Nobody waits any more: whatever the throughput, that was the point.
        is_good = operator.congestion <= _WAITS or gained >= _CAME_TRUE * (
            expectation.expected - expectation.before
        )
    if is_good:
        return Verdict("effective", observed)
    rate = expectation.arrival_rate
    is_other = rate is not None and _is_other_load(rate, operator)
    if expectation.metric == "throughput" and operator.backlog_rows > operator.late_rows:
        is_other = False  # as long as input waits in the source, there is as much as there was
    return Verdict("overtaken" if is_other else "ineffective", observed)


def extend_hold(
    before: Hold | None, operator: OperatorView, batch: int, kind: str, interval_s: float
) -> Hold:
    """How long a kind of decision waits after it did not work, once more; `interval_s` is the time
    from one batch to the next where none is late.
    """
    times = before.times + 1 if before is not None else 1
    first_s = _HOLD_S.get(kind, _HOLD_ELSE_S)
    first = max(_HOLD_BATCHES_LEAST, math.ceil(first_s / interval_s if interval_s > 0 else first_s))
    return Hold(batch + first * 2 ** min(times - 1, _HOLD_DOUBLINGS), times, operator.arrival_rate)


def is_held(hold: Hold | None, operator: OperatorView, batch: int) -> bool:
    """Whether a kind of decision still has to wait."""
    if hold is None or batch > hold.until:
        return False
    return not _is_other_load(hold.arrival_rate, operator)


def _judge_balance(expectation: Expectation, operator: OperatorView) -> Verdict:
    # Measured time, at full speed what it is of a share.
    speeds = operator.speeds
    busy = operator.channel_load if speeds is None else operator.channel_load * speeds
    total = float(busy.sum())
    if total <= 0 or operator.total_load <= 0:
        return Verdict("overtaken", None)
    observed = float(operator.channel_load.max()) / total
    # What the table that was given up would do with the load of today, against the new one.
    before = _busiest_share(expectation.table, operator)
    promised = before - _busiest_share(operator.table, operator)
    if promised < _STILL_TRUE * (expectation.before - expectation.expected):
        return Verdict("overtaken", observed)
    rows = operator.throughput * expectation.interval_s / operator.channels
    if promised < _CHANCE * observed / max(rows, 1.0) ** 0.5:
        return Verdict("unclear", observed)
    gained = before - observed
    return Verdict("effective" if gained >= _CAME_TRUE * promised else "ineffective", observed)


def _is_other_load(rate: float, operator: OperatorView) -> bool:
    return abs(operator.arrival_rate - rate) > _OTHER_LOAD * max(rate, 1e-9)


def _busiest_share(table: RoutingTable, operator: OperatorView) -> float:
    speeds = operator.speeds_of(table.channels)
    return float(channel_times(table, operator.load, speeds).max()) / operator.total_load
