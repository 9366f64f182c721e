"""The balance policies: elasticutor, autoflow, consistent, and the baselines static and rc.

Whoever lowers the imbalance does so on the predicted busy time of slots. A change of the number of
channels is the policy's business too, because what moves then is its choice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from braided.control.measure.view import OperatorView
from braided.control.routing.balance import apply_moves, balancing_moves, channel_times
from braided.control.routing.executors import balance_within
from braided.control.routing.rescale import rescale
from braided.control.routing.ring import POINTS, ring
from braided.control.routing.table import Loads, RoutingTable, Slots

__all__ = ["TOLERATED", "Autoflow", "Consistent", "Elasticutor", "Rc", "Static", "hotspot_moves"]

TOLERATED = 1.05
"""The paper's 1.2 leaves a fifth of the machine idle. Slots move at batch boundaries, where nothing
has to stop for them, so less is worth having; and who is compared is compared by the same.
"""


@dataclass(frozen=True)
class Elasticutor:
    """δ ≤ θ with few moves, inside each executor's key range (Elasticutor 3.1).

    Whoever stops right at θ is above it again after the next batch. So once δ is above θ, the
    rounds go on to half of what is tolerated.
    """

    theta: float = TOLERATED
    keeps_ranges = True
    """Whether slots stay on the channels of their executor, as `operator.layout` has them."""
    by_load = True
    """Whether it goes by the loads that it is shown alone, also by those of a batch to come."""

    @property
    def goal(self) -> float:
        return 1 + (self.theta - 1) / 2

    def balance(self, operator: OperatorView, channels: int) -> RoutingTable:
        if operator.layout is not None:
            return balance_within(
                operator.layout,
                operator.table,
                operator.load,
                self.theta,
                self.goal,
                operator.speeds_of(operator.layout.total),
            )
        return _refine(operator, channels, self.theta, self.goal)


@dataclass(frozen=True)
class Rc:
    """Resource-centric: the same balancer over the whole operator (Elasticutor 5).

    In the paper its price is a global synchronisation. A batch boundary is one for everybody, so
    only the simulator charges it, to whoever says `synchronises`.
    """

    theta: float = TOLERATED
    synchronises = True
    by_load = True

    def balance(self, operator: OperatorView, channels: int) -> RoutingTable:
        return _refine(operator, channels, self.theta, Elasticutor(self.theta).goal)


@dataclass(frozen=True)
class Autoflow:
    """Hotspot-diminishing: slots worth half the gap from the fullest to the emptiest channel
    (AutoFlow III-D, Algorithm 3). More or fewer channels, which the paper has not, come first.
    """

    factor: float = 0.2
    by_load = True

    def balance(self, operator: OperatorView, channels: int) -> RoutingTable:
        before = operator.table
        table = rescale(before, channels, operator.load)
        slots = table.slots.copy()
        speeds = operator.speeds_of(channels)
        moved, to = hotspot_moves(table, operator.load, self.factor, speeds)
        slots[moved] = to
        return before.next(slots, channels)


@dataclass(frozen=True)
class Consistent:
    """A hash ring (Gedik et al. 6.2): knows nothing of loads, moves little when channels change.

    New channels take what is theirs on the ring, and what channels that go had falls to those that
    have it there. Who was on the ring stays on it, and a table that never was does not have to get
    there first.
    """

    points: int = POINTS

    def balance(self, operator: OperatorView, channels: int) -> RoutingTable:
        before = operator.table
        if channels == before.channels:
            return before
        on_ring = ring(before.slots.size, channels, self.points)
        moved = (on_ring >= before.channels) | (before.slots >= channels)
        return before.next(np.where(moved, on_ring, before.slots), channels)


@dataclass(frozen=True)
class Static:
    """A plain hash: slot modulo channels, whatever the load. What most systems do."""

    def balance(self, operator: OperatorView, channels: int) -> RoutingTable:
        before = operator.table
        if channels == before.channels:
            return before
        return before.next(RoutingTable.initial(before.slots.size, channels).slots, channels)


def hotspot_moves(
    table: RoutingTable, load: Loads, factor: float, speeds: Loads | None = None
) -> tuple[Slots, int]:
    """Algorithm 3: the slots to move, and the channel to move them to.

    The largest slot first; what does not fit into the rest of half the gap is passed over, and
    slots without load are left where they are. With channels of different speeds the gap is one
    of time, and half of it is what makes both take as long.
    """
    times = channel_times(table, load, speeds)
    fullest, emptiest = int(times.argmax()), int(times.argmin())
    gap = float(times[fullest] - times[emptiest])
    if gap <= 0 or gap / float(times[fullest]) < factor:
        return np.empty(0, dtype=np.int32), emptiest
    mine = table.of(fullest)
    mine = mine[np.lexsort((mine, -load[mine]))]
    left, moved = gap / 2, []
    if speeds is not None:
        left = gap * float(
            speeds[fullest] * speeds[emptiest] / (speeds[fullest] + speeds[emptiest])
        )
    for slot, weight in zip(mine.tolist(), load[mine].tolist(), strict=True):
        if 0 < weight <= left:
            moved.append(slot)
            left -= weight
    return np.array(moved, dtype=np.int32), emptiest


def _refine(operator: OperatorView, channels: int, theta: float, goal: float) -> RoutingTable:
    """More or fewer channels first, then rounds; one epoch on, whatever it took."""
    table, load, speeds = operator.table, operator.load, operator.speeds_of(channels)
    scaled = rescale(table, channels, load)
    moves = balancing_moves(scaled.slots, load, channels, theta, goal=goal, speeds=speeds)
    return table.next(apply_moves(scaled.slots, moves), channels) if moves else scaled
