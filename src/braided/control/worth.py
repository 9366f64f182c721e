"""Whether a plan is worth it: what it brings within a horizon, against what moving costs.

What it brings is time: the batch is as long as its busiest channel is busy, so a peak that falls
from 1.4 to 1.1 busy seconds a second saves 0.3 s of every second to come. Fewer channels bring no
time; they are worth the share of the operator that they set free. What it costs is the state that
has to be read by another host, once, and a little for every slot that is opened anew. Tables say
where channels should run, and so which slots change hosts: a channel that has no host yet is on
another one than all that have. What reading costs is measured (`measure/moving_cost.py`).

A slot whose keys are on its host for the sake of others there (`control/locality`) has an anchor:
to take it elsewhere costs what its rows then cost that stayed before. That counts against a plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from braided.control.hot_keys import KeyToSplit, load_if_split
from braided.control.measure.moving_cost import MovingRates
from braided.control.measure.view import KeyLoad, OperatorView
from braided.control.routing.balance import channel_times
from braided.control.routing.residence import NOWHERE, Residence
from braided.control.routing.table import Loads, RoutingTable, Slots, moves

__all__ = ["Prices", "Worth", "weigh", "weigh_pin", "weigh_split"]


@dataclass(frozen=True)
class Prices:
    """What moving costs, and how long a plan may take to pay for itself."""

    bytes_per_s: float = 100e6
    slot_s: float = 0.0005
    horizon_s: float = 30.0
    least_gain: float = 0.01  # of the peak: less is not worth a line in the log
    least_batch_s: float = 0.0  # of a batch: less is what noise in clocks makes

    def measured(self, rates: MovingRates) -> Prices:
        """The same with what moving was seen to cost."""
        return replace(self, bytes_per_s=rates.bytes_per_s, slot_s=rates.slot_s)


@dataclass(frozen=True)
class Worth:
    """What a plan brings and what it costs, both in seconds of batch time."""

    gain_s: float
    cost_s: float
    moved_slots: int
    moved_bytes: float
    pays: bool
    locality_s: float = 0.0
    """What is lost because rows that stayed on their host leave it; at most 0."""

    @property
    def net_s(self) -> float:
        return self.gain_s + self.locality_s - self.cost_s


def weigh(
    operator: OperatorView,
    after: RoutingTable,
    prices: Prices,
    period_s: float = 1.0,
    wanted_s: float = 0.0,
) -> Worth:
    """The worth of changing to a table; `period_s` is the time from one batch to the next.

    Another number of channels is worth the more the longer it has been wanted (`wanted_s`): what is
    needed for good pays for itself in the end, and what comes and goes never does.
    """
    before = operator.table
    moved = moves(before, after)
    read = moved[_changes_host(operator, after, moved)]
    moved_bytes = float(operator.state_bytes[read].sum())
    speeds_after = operator.speeds_of(after.channels)
    peak_before = float(channel_times(before, operator.load, operator.speeds).max())
    peak_after = float(channel_times(after, operator.load, speeds_after).max())
    scales = after.channels != before.channels
    if scales:  # what a balance policy makes of the channels is another question
        peak_after = min(peak_after, operator.total_load / after.channels)
    gain = max(0.0, peak_before - peak_after)
    if after.channels < before.channels:
        gain = max(gain, 1 - after.channels / before.channels)
    gain_s = gain * (prices.horizon_s + (wanted_s if scales else 0.0))
    locality_s = 0.0
    if operator.anchor is not None and not scales:  # who scales has other reasons to move slots
        locality_s = -float(operator.anchor[read].sum()) * prices.horizon_s
    cost_s = moved_bytes / prices.bytes_per_s + moved.size * prices.slot_s
    return Worth(
        gain_s=gain_s,
        cost_s=cost_s,
        moved_slots=int(moved.size),
        moved_bytes=moved_bytes,
        pays=gain_s + locality_s > cost_s
        and (scales or gain > prices.least_gain * peak_before)
        and (scales or gain * period_s >= prices.least_batch_s),
        locality_s=locality_s,
    )


def weigh_split(operator: OperatorView, split: KeyToSplit, prices: Prices) -> tuple[float, float]:
    """The seconds that a split key saves before any slot has moved, and those that it takes to open
    its shares. No state moves for it.
    """
    gain_s = _peak_s(operator, load_if_split(operator, split), prices)
    return gain_s, len(split.slots) * prices.slot_s


def weigh_pin(operator: OperatorView, key: KeyLoad, prices: Prices) -> tuple[float, float]:
    """The seconds that a pinned key saves at most, if all its company leaves its channel, and those
    that it takes to open its slot and the one that it had. What its company takes to leave is part
    of the plan that moves it.
    """
    load = operator.load.copy()
    load[key.slot] = min(load[key.slot], key.load)
    return _peak_s(operator, load, prices), 2 * prices.slot_s


def _peak_s(operator: OperatorView, load: Loads, prices: Prices) -> float:
    """What the busiest channel saves within the horizon, if slots have this load."""
    peaks = [
        float(channel_times(operator.table, each, operator.speeds).max())
        for each in (operator.load, load)
    ]
    return max(0.0, peaks[0] - peaks[1]) * prices.horizon_s


def _changes_host(
    operator: OperatorView, after: RoutingTable, slots: Slots
) -> npt.NDArray[np.bool_]:
    """Which of these slots are not on the host where they would run."""
    if not after.hosts or not slots.size:
        return np.zeros(slots.size, dtype=bool)
    residence = operator.residence or Residence.of_table(operator.table)
    number = {name: n for n, name in enumerate(residence.hosts)}
    of_channels = np.array([number.get(name, NOWHERE) for name in after.hosts])
    taker = of_channels[after.slots[slots]]
    changes: npt.NDArray[np.bool_] = (taker == NOWHERE) | (taker != residence.of_slot[slots])
    return changes
