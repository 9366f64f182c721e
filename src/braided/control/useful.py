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
from braided.control.measure.view import FlowView, OperatorView

__all__ = [
    "HottestKey",
    "KeyNames",
    "Remote",
    "Useful",
    "held_up",
    "of_cores",
    "of_key",
    "of_overhead",
    "remote_bound",
    "sized",
]

KeyNames = Callable[[str, bytes], str]
"""How a key of an operator is shown to people."""

_FOLLOW = 0.3
"""How fast the share of the hottest key is followed."""
_KEY_LEAST = 0.5
"""Of a channel: a key that takes less is in nobody's way, whatever its share of a trickle."""
_UTILISATION = 0.8
_OTHER = 0.25
_UNEXPLAINED = 0.25
"""Of an interval: by less of an overhead that nobody explains no policy's number is far off."""
_ORDINARY = 0.1
"""Of an interval: what a batch takes in any case, as long as nobody knows better."""
_LOOK = 1.25
"""Where the work of rows asks for no more, so many times the channels show whether they help."""
_CONGESTED = 0.2
_FALLS_BEHIND = 0.95
"""Of what comes in: who takes in less has ever more to do, and is not just late."""
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


def sized(flow: FlowView, name: str) -> int | None:
    """The channels that the work of an operator's rows asks for, beside an overhead that is known;
    None where that leaves no time.

    Operators run one after the other: the fewest are in proportion to the roots of their work.
    """
    known_s = flow.overhead_s - flow.overhead_unexplained_s
    known_s = max(known_s, min(flow.overhead_s, _ORDINARY * flow.interval_s))
    room = 1.0 - known_s / flow.interval_s if flow.interval_s > 0 else 1.0
    if room <= 0:
        return None
    roots = sum(math.sqrt(work) for work in flow.work.values())
    channels = math.sqrt(flow.work[name]) * roots / (_UTILISATION * room)
    return max(1, math.ceil(channels - 1e-9))


def of_overhead(flow: FlowView, name: str) -> Useful | None:
    """Where batches take long without the work of their rows, and it is not known that they would
    without rows: policies make up for it with channels, many of them, and nobody knows that they
    help. So as many are tried first as the work asks for. Where it fills the interval, it is no
    more than twice as many in any case.
    """
    fills = flow.overhead_fills_interval
    is_unexplained = flow.overhead_unexplained_s > _UNEXPLAINED * flow.interval_s > 0
    if not fills and not is_unexplained:
        return None
    now = flow.operators[name].channels
    channels = 2 * now
    if is_unexplained:
        look = now if flow.overhead_is_of_channels else math.ceil(_LOOK * now)
        asked = max(sized(flow, name) or channels, look)
        channels = min(asked, channels) if fills else asked
    takes = "a batch takes long beside the work of its rows, in a sink say"
    if channels > now:
        return Useful(channels, f"{takes}; {channels} channels are tried first", "overhead")
    why = f"{takes}, and did not with fewer channels; more than {channels} channels do not help"
    return Useful(channels, why, "overhead")


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

    def useful(self, is_over: bool, asked: int | None = None) -> Useful:
        """Who looks again whether it still is so does not look far: no further than to twice as
        many, nor than to as many as the work of rows asks for, or a look takes.
        """
        if is_over:
            first = 2 * self.channels
            if asked is not None:
                first = min(first, max(asked, math.ceil(_LOOK * self.channels)))
            return Useful(
                first, f"{self.tried} channels did not help before; {first} are tried first"
            )
        return Useful(
            self.channels,
            f"{self.tried} channels took in {self.rows_per_s:,.0f} rows/s and did not help: what "
            f"holds them up comes after them, a sink say; more than {self.channels} channels do "
            "not help",
        )


def held_up(flow: FlowView, operator: OperatorView) -> Remote | None:
    """What a batch shows that a step up would: an operator takes in less than comes in, while most
    of a batch is not its rows', was less with fewer channels, and its work asks for fewer. They
    have made their work shorter, and something else longer by as much.
    """
    rows_per_s = operator.throughput
    falls_behind = (
        operator.backlog_rows > operator.late_rows
        or rows_per_s < _FALLS_BEHIND * operator.arrival_rate
    )
    if (
        operator.congestion <= _CONGESTED
        or flow.overhead_unexplained_s <= _UNEXPLAINED * flow.interval_s
        or not flow.overhead_is_of_channels
        or not falls_behind
    ):
        return None
    asked = sized(flow, operator.name)
    if asked is None:
        return None
    part = min(1.0, rows_per_s / operator.arrival_rate) if operator.arrival_rate > 0 else 1.0
    needed = max(1, math.ceil(asked * part))
    return Remote(needed, operator.channels, rows_per_s) if needed < operator.channels else None


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
