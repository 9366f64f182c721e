"""How many channels are of any use, whatever a policy asks for, and why no more are.

Three things are not helped by channels: a key, whose rows one channel has; cores, of which there
are as many as there are; and what comes after the operator, a sink say, which takes as many rows
from many channels as from few. Who does not know takes all channels there are, and is no faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from braided.control.hot_keys import HotKeyRule, has_room_to_split
from braided.control.measure.view import OperatorView

__all__ = [
    "HottestKey",
    "KeyNames",
    "Remote",
    "Useful",
    "of_cores",
    "of_key",
    "of_overhead",
    "remote_bound",
]

KeyNames = Callable[[str, bytes], str]
"""How a key of an operator is shown to people."""

_FOLLOW = 0.3
"""How fast the share of the hottest key is followed."""
_KEY_LEAST = 0.5
"""Of a channel: a key that takes less is in nobody's way, whatever its share of a trickle."""
_UTILISATION = 0.8
_OTHER = 0.25
_NO_GAIN = 0.1
"""More channels that bring less throughput than this have brought none."""


@dataclass(frozen=True)
class Useful:
    """As many channels as help, and the sentence that says why no more do."""

    channels: int
    why: str
    factor: str = "sink"
    """The same in a word, one of `events.FACTORS`."""


@dataclass(frozen=True)
class HottestKey:
    """A key's share of its operator's work, as of the last batches."""

    key: bytes
    share: float

    @staticmethod
    def seen(before: HottestKey | None, operator: OperatorView) -> HottestKey | None:
        """After one more batch; one without rows says nothing."""
        if operator.rows == 0 or operator.total_load <= 0:
            return before
        hottest = max(operator.heavy, key=lambda key: key.load, default=None)
        if hottest is None:
            return None
        # Rows of now against the rows of now: a load is of many batches.
        total = operator.total_load * _now(operator)
        share = min(1.0, hottest.load / total) if total > 0 else 0.0
        if before is not None and before.key == hottest.key:
            share = before.share + _FOLLOW * (share - before.share)
        return HottestKey(hottest.key, share)


def _now(operator: OperatorView) -> float:
    """The last batch's rate over the one that the load is for."""
    if operator.arrivals is None or operator.arrival_rate <= 0:
        return 1.0
    return operator.arrivals.last / operator.arrival_rate


def of_key(
    operator: OperatorView, hottest: HottestKey | None, name: KeyNames, rule: HotKeyRule
) -> Useful | None:
    """More channels than make the others as long as the hottest key's make nobody faster, unless
    the key can be split.
    """
    takes = 0.0 if hottest is None else hottest.share * operator.total_load
    if hottest is None or takes < _KEY_LEAST or has_room_to_split(operator, hottest.key, rule):
        return None
    channels = max(1, math.ceil(1 / hottest.share - 0.05))
    return Useful(
        channels,
        f"key {name(operator.name, hottest.key)} alone takes {takes:.1f} channels; more than "
        f"{channels} channels do not help",
        "hot key",
    )


def of_cores(operator: OperatorView, cpus: int | None) -> Useful | None:
    """Channels that compute need a core each."""
    if cpus is None or operator.cpu_share is None or operator.cpu_share <= 0:
        return None
    channels = max(1, math.ceil(cpus / operator.cpu_share - 0.1))
    return Useful(
        channels,
        f"{channels} channels keep {cpus} cores busy; more than {channels} channels do not help",
        "cores",
    )


def of_overhead(operator: OperatorView) -> Useful:
    """Where batches take their interval without the work of their rows: whatever a policy makes of
    that, nobody knows that more channels help, so it is found out with few.
    """
    channels = 2 * operator.channels
    return Useful(
        channels,
        "what a batch takes beside the work of its rows, a sink say, fills its interval; "
        f"{channels} channels are tried first",
        "overhead",
    )


class Remote(msgspec.Struct, frozen=True):
    """A step up that did not help: as many channels are enough for what can be taken in."""

    channels: int
    tried: int
    rows_per_s: float

    def is_over(self, operator: OperatorView) -> bool:
        """Whether more is taken in by now, or less: then something else has changed as well. How
        much comes in says nothing, as long as it is more than is taken.
        """
        return abs(operator.throughput - self.rows_per_s) > _OTHER * self.rows_per_s

    def useful(self, is_over: bool) -> Useful:
        """Who looks again whether it still is so does not look far."""
        if is_over:
            return Useful(
                2 * self.channels,
                f"{self.tried} channels did not help before; {2 * self.channels} are tried first",
            )
        return Useful(
            self.channels,
            f"{self.tried} channels took in {self.rows_per_s:,.0f} rows/s and did not help: what "
            f"holds them up comes after them, a sink say; more than {self.channels} channels do "
            "not help",
        )


def remote_bound(operator: OperatorView, channels_before: int, before: float) -> Remote:
    """After a step up that did not help: the channels that what is taken in needs, by the time
    that its rows take. Where it helped a little, these are more than there were; else they are not.
    """
    needed = channels_before
    if operator.true_rate > 0:
        needed = math.ceil(operator.throughput / operator.true_rate / _UTILISATION - 1e-9)
    most = operator.channels
    if operator.throughput <= before * (1 + _NO_GAIN):
        most = channels_before
    return Remote(max(1, min(most, needed)), operator.channels, operator.throughput)
