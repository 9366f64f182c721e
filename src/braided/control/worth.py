"""Whether a plan is worth it: what it brings within a horizon, against what moving costs.

What it brings is time: the batch is as long as its busiest channel is busy, so a peak that falls
from 1.4 to 1.1 busy seconds a second saves 0.3 s of every second to come. Fewer channels bring no
time; they are worth the share of the operator that they set free. What it costs is the state that
has to be fetched by another host, once, and a little for every slot that is opened anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from braided.control.measure.view import OperatorView
from braided.control.routing.balance import channel_loads
from braided.control.routing.table import RoutingTable, moves

__all__ = ["Prices", "Worth", "weigh"]


@dataclass(frozen=True)
class Prices:
    """What moving costs, and how long a plan may take to pay for itself."""

    bytes_per_s: float = 100e6
    slot_s: float = 0.0005
    horizon_s: float = 30.0
    least_gain: float = 0.01  # of the peak: less is not worth a line in the log
    least_batch_s: float = 0.0  # of a batch: less is what noise in clocks makes


@dataclass(frozen=True)
class Worth:
    """What a plan brings and what it costs, both in seconds of batch time."""

    gain_s: float
    cost_s: float
    moved_slots: int
    moved_bytes: float
    pays: bool


def weigh(
    operator: OperatorView,
    after: RoutingTable,
    prices: Prices,
    hosts: Sequence[int] | None = None,
    period_s: float = 1.0,
) -> Worth:
    """The worth of changing to a table; `hosts` says where channels are, if not all on one, and
    `period_s` is the time from one batch to the next.
    """
    before = operator.table
    moved = moves(before, after)
    moved_bytes = 0.0
    if hosts is not None:
        host_of = np.asarray(hosts)
        changes_host = host_of[before.slots[moved]] != host_of[after.slots[moved]]
        moved_bytes = float(operator.state_bytes[moved[changes_host]].sum())
    peak_before = float(channel_loads(before, operator.load).max())
    peak_after = float(channel_loads(after, operator.load).max())
    gain = max(0.0, peak_before - peak_after)
    if after.channels < before.channels:
        gain = max(gain, 1 - after.channels / before.channels)
    gain_s = gain * prices.horizon_s
    cost_s = moved_bytes / prices.bytes_per_s + moved.size * prices.slot_s
    return Worth(
        gain_s=gain_s,
        cost_s=cost_s,
        moved_slots=int(moved.size),
        moved_bytes=moved_bytes,
        pays=gain_s > cost_s
        and gain > prices.least_gain * peak_before
        and gain * period_s >= prices.least_batch_s,
    )
