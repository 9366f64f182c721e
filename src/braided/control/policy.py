"""What a policy is: two small protocols, and the values that policies are given and give back.

A *scale* policy says how many channels operators should have; a *balance* policy says which channel
has which slot. Both are functions of what they are given. A scale policy that learns keeps what it
knows in a `Memory`, plain JSON values that it is handed and hands back: the controller stores it
with the query, so that a restart goes on where it was.

Policies are found by name (`braided.control.registry`) or passed as objects.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from braided.control.levels import levels
from braided.control.measure.view import FlowView, OperatorView
from braided.control.routing.table import RoutingTable

__all__ = ["BalancePolicy", "Bounds", "Limits", "Memory", "ScalePolicy", "Wish"]

Memory = dict[str, Any]


@dataclass(frozen=True)
class Bounds:
    """The channels of one operator, where they are not those of all."""

    channels_min: int | None = None
    channels_max: int | None = None


@dataclass(frozen=True)
class Limits:
    """What no policy may go beyond, per operator, and how soon it may change its mind.

    After a change of the number of channels the next one waits `cooldown_batches` and `cooldown_s`.
    More channels are taken when they have been asked for during `up_delay_s`. Fewer are only taken
    when the wish is below `1 - hysteresis` of what there is, and was so in `calm_batches` batches
    in a row and for `calm_s`; then the highest of those wishes counts.

    `operators` has bounds of single operators, and `excluded` those whose channels stay as they
    are. `cpus` is how many cores there really are, where more tasks may run at a time.

    `cores` is how many channels can run at once: the operators of a flow run one after the other,
    so that each may have as many, but one with more would come in waves, which takes longer than
    fewer channels with more to do. Only `channels_min` can ask for that.
    """

    channels_min: int = 1
    channels_max: int = 64
    cores: int | None = None  # None: as many as anybody wants
    total_max: int | None = None  # of all operators together
    cooldown_batches: int = 0
    hysteresis: float = 0.1
    calm_batches: int = 3
    cooldown_s: float = 0.0
    calm_s: float = 0.0
    up_delay_s: float = 0.0
    cpus: int | None = None
    operators: Mapping[str, Bounds] = field(default_factory=dict)
    excluded: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not 1 <= self.channels_min <= self.channels_max:
            raise ValueError(
                f"channels are between {self.channels_min} and {self.channels_max}: "
                "the least is at least 1, and not above the most"
            )
        if self.cores is not None and self.cores < 1:
            raise ValueError(f"channels run on at least one core, not {self.cores}")
        if not 0 <= self.hysteresis < 1:
            raise ValueError(f"a hysteresis is a share below 1, not {self.hysteresis}")

    def of(self, name: str, channels: int) -> Limits:
        """The limits of one operator, which has so many channels."""
        if name in self.excluded:
            return replace(self, channels_min=channels, channels_max=channels, operators={})
        own = self.operators.get(name)
        if own is None:
            return self
        most = self.channels_max if own.channels_max is None else own.channels_max
        least = self.channels_min if own.channels_min is None else own.channels_min
        if own.channels_min is None:
            least = min(least, most)
        elif own.channels_max is None:
            most = max(least, most)
        return replace(self, channels_min=least, channels_max=most, operators={})

    @property
    def own(self) -> dict[str, Bounds]:
        """What holds for single operators, as far as it can be had on the cores that there are."""
        each = {name: self.of(name, 1) for name in self.operators.keys() - self.excluded}
        return {name: Bounds(own.channels_min, own.most) for name, own in sorted(each.items())}

    @property
    def most(self) -> int:
        """As many channels as an operator may have, if it has the slots for them."""
        if self.cores is None:
            return self.channels_max
        return min(self.channels_max, max(self.cores, self.channels_min))

    def clamp(self, channels: int, slots: int) -> int:
        """The nearest number that is allowed; more channels than slots would idle."""
        return max(1, min(max(channels, self.channels_min), self.most, slots))

    def bound(self, channels: int, slots: int) -> str:
        """What keeps an operator with so many channels from having more, if it is the cores."""
        is_bound = self.most < self.channels_max and channels == self.most <= slots
        return f"; no more than {self.most} can run at once" if is_bound else ""

    def room(self, channels: int) -> int:
        """How many channels there may be beside so many, those of all operators together."""
        return sys.maxsize if self.total_max is None else max(0, self.total_max - channels)

    def levels(self, slots: int) -> tuple[int, ...]:
        """The numbers of channels that a step-by-step policy goes through."""
        return levels(self.clamp(1, slots), self.clamp(self.channels_max, slots))


@dataclass(frozen=True)
class Wish:
    """A number of channels for one operator, and why.

    A wish that is to be granted `at_once` is held to the bounds only, and not to cool-down,
    hysteresis, calm and what did not help before.
    """

    channels: int
    reason: str
    at_once: bool = False


@runtime_checkable
class ScalePolicy(Protocol):
    """How many channels.

    A policy that goes by the rates of the view, and not by what it has seen of itself, may say so
    with an attribute `by_rate = True`. Then it is also asked right before a batch whose input is
    known to be much larger than the last, with its memory as it is, and in another thread.
    """

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        """Wishes by operator; an operator without one stays as it is.

        `memory` is what the call before returned, or `{}` at first. Don't change it: return a new
        one. It has to survive JSON.
        """
        ...


@runtime_checkable
class BalancePolicy(Protocol):
    """Which slot on which channel.

    A table has to pay: the controller drops one that does not save time. A policy may have
    attributes that say more of it:

    - `weighed = False`: it has other reasons to move slots, and is followed without being weighed;
    - `keeps_ranges = True`: slots stay on the channels of their executor, as `operator.layout` has
      them; without it `braided.executors` above 1 is refused;
    - `by_load = True`: it goes by `operator.load` and keeps nothing in mind; then it is also asked
      right before a batch whose rows have been counted, and in another thread;
    - `synchronises = True`: its changes would stop everybody, which the simulator charges for.
    """

    def balance(self, operator: OperatorView, channels: int) -> RoutingTable:
        """The table for that many channels; `operator.table` itself when nothing should move."""
        ...
