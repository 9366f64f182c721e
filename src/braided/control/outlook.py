"""What was known after a batch, to size the next one by as soon as its input is known.

A decision made after a batch is one batch late: the first of a surge runs on the channels of the
calm before it, and while it takes its time, input for the next one piles up. But how much a batch
has to do shows before it runs, in the bytes of its files or in its offsets. Against those of the
batch before, with what is known of that one, this says how many channels it should have.

Only more of them: a batch that is small may be followed by one that is not, so channels are given
up after the fact, when there has been some calm. Delays and cool-downs hold here as they do after a
batch. And only by a policy that goes by rates and says
so with an attribute `by_rate = True`. One that goes by what it has seen of itself has seen nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from braided.control.measure.view import FlowView, OperatorView
from braided.control.policy import Limits, Memory, ScalePolicy, Wish

__all__ = ["Outlook"]

_SURGE = 1.25
"""What input has to grow by; less than this is met by the decision after the batch."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """A moment of a controller; it changes nothing, so that any thread may ask it."""

    view: FlowView
    collected_s: float  # how long the input of the last batch that had some had been collected
    scale: ScalePolicy
    limits: Limits
    memory: Memory
    useful: Mapping[str, int] = field(default_factory=dict)
    """As many channels as help, of operators of which that is known."""
    cooling: frozenset[str] = frozenset()
    """Operators whose channels changed so lately that they stay as they are."""
    now_s: float = 0.0
    wanted_since_s: Mapping[str, float] = field(default_factory=dict)
    """Since when more channels have been asked for, of operators for which they are."""
    by_load: frozenset[str] = frozenset()
    """Operators of which as many channels help as the load of the last batch asks for."""

    def wishes(self, growth: float, collected_s: float) -> dict[str, Wish]:
        """Operators that should have more channels for a batch that has `growth` times the input of
        the last one that had some, collected in that time, and in the pause before.
        """
        if not getattr(self.scale, "by_rate", False) or collected_s <= 0:
            return {}
        faster = growth * self.collected_s / (self.view.pause_s + collected_s)
        operators = {
            name: _at(o, _rate(o, faster, collected_s)) for name, o in self.view.operators.items()
        }
        known = [
            (after.arrival_rate / before.arrival_rate, faster)[before.arrivals is None]
            for before, after in zip(self.view.operators.values(), operators.values(), strict=True)
            if before.arrival_rate > 0
        ]
        if max(known, default=faster) < _SURGE:
            return {}
        wishes, _ = self.scale.scale(
            replace(self.view, operators=operators), self.limits, self.memory
        )
        return self._grant_more(wishes, faster, self.now_s + collected_s)

    def _grant_more(
        self, wishes: Mapping[str, Wish], faster: float, at_s: float
    ) -> dict[str, Wish]:
        """The wishes for more channels, as far as there is room for them and it is time."""
        granted = {}
        room = self.limits.room(sum(o.channels for o in self.view.operators.values()))
        for name, wish in wishes.items():
            operator = self.view.operators[name]
            if name in self.limits.excluded or not (wish.at_once or self._is_time(name, at_s)):
                continue
            limits = self.limits.of(name, operator.channels)
            wanted = limits.clamp(wish.channels, operator.table.slots.size)
            if name in self.useful:
                growth = max(1.0, faster) if name in self.by_load else 1.0
                wanted = min(wanted, math.ceil(growth * self.useful[name]))
            channels = min(wanted, operator.channels + room)
            if channels > operator.channels:
                room -= channels - operator.channels
                reason = (
                    f"input comes {faster:.1f} times as fast as before: {wish.reason}"
                    f"{limits.bound(channels, operator.table.slots.size)}"
                )
                granted[name] = replace(wish, channels=channels, reason=reason)
        return granted

    def _is_time(self, name: str, at_s: float) -> bool:
        """Whether an operator may get more channels then."""
        wanted_s = at_s - self.wanted_since_s.get(name, at_s)
        return name not in self.cooling and wanted_s >= self.limits.up_delay_s


def _rate(operator: OperatorView, faster: float, collected_s: float) -> float:
    """The rate to be expected of an operator, if its next batch comes so much faster than the last.

    A source that always varies by as much says nothing by it.
    """
    if operator.arrivals is None:
        return operator.arrival_rate * faster
    rate = operator.arrivals.last * faster
    rows = rate * (sum(operator.arrivals.pause) + collected_s)
    return operator.arrivals.then(rows, collected_s).rows_per_s


def _at(operator: OperatorView, rate: float) -> OperatorView:
    factor = rate / operator.arrival_rate if operator.arrival_rate > 0 else 1.0
    return replace(operator, arrival_rate=rate, load=operator.load * factor)
