"""What was known after a batch, to size the next one by as soon as its input is known.

A decision made after a batch is one batch late: the first of a surge runs on the channels of the
calm before it, and while it takes its time, input for the next one piles up. But how much a batch
has to do shows before it runs, in the bytes of its files or in its offsets. Against those of the
batch before, with what is known of that one, this says how many channels it should have.

Only more of them: a batch that is small may be followed by one that is not, so channels are given
up after the fact, when there has been some calm. And only by a policy that goes by rates and says
so with an attribute `by_rate = True`. One that goes by what it has seen of itself has seen nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from braided.control.measure.view import FlowView
from braided.control.policy import Limits, Memory, ScalePolicy, Wish

__all__ = ["Outlook"]

_SURGE = 1.25
"""What input has to grow by; less than this is met by the decision after the batch."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """A moment of a controller; it changes nothing, so that any thread may ask it."""

    view: FlowView
    collected_s: float  # how long the input of the last batch had been collected
    scale: ScalePolicy
    limits: Limits
    memory: Memory

    def wishes(self, growth: float, collected_s: float) -> dict[str, Wish]:
        """Operators that should have more channels for a batch that has `growth` times the input of
        the last one, collected in that time.
        """
        if not getattr(self.scale, "by_rate", False) or collected_s <= 0:
            return {}
        faster = growth * self.collected_s / collected_s
        if faster < _SURGE:
            return {}
        operators = {
            name: replace(o, arrival_rate=o.arrival_rate * faster, load=o.load * faster)
            for name, o in self.view.operators.items()
        }
        wishes, _ = self.scale.scale(
            replace(self.view, operators=operators), self.limits, self.memory
        )
        return self._grant_more(wishes, faster)

    def _grant_more(self, wishes: Mapping[str, Wish], faster: float) -> dict[str, Wish]:
        """The wishes for more channels, as far as there is room for them."""
        granted = {}
        room = self.limits.room(sum(o.channels for o in self.view.operators.values()))
        for name, wish in wishes.items():
            operator = self.view.operators[name]
            wanted = self.limits.clamp(wish.channels, operator.table.slots.size)
            channels = min(wanted, operator.channels + room)
            if channels > operator.channels:
                room -= channels - operator.channels
                reason = (
                    f"input comes {faster:.1f} times as fast as before: {wish.reason}"
                    f"{self.limits.bound(channels, operator.table.slots.size)}"
                )
                granted[name] = replace(wish, channels=channels, reason=reason)
        return granted
