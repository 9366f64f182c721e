"""Hot keys: when a key gets a slot of its own, and the bound that it sets to any balance.

Rows of one key are processed by one channel, so a key sets a floor under the busiest channel that
no assignment of slots goes below: `balance_bound`. What can be helped is the company it keeps. A
key that is heavy against a channel's fair load and shares its slot with others is *pinned*: it
gets its own slot, and the others move without it. When it has cooled down it is unpinned.

Where an operator can merge, a key that is more than a channel's fair load is *split*: its rows are
dealt out to several slots, its shares, which have channels as any slots do. Then the bound is that
of a share. When the key fits a channel again it is made whole.

A key is pinned by the lower bound of its load and unpinned by the upper one, so an
estimate that is unsure changes nothing. Tasks count the rows of their heaviest keys exactly
(`tasks/heavy_keys.py`), so in a running query both bounds are the load itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import ceil

import numpy as np

from braided.control.measure.view import KeyLoad, OperatorView
from braided.control.routing.balance import channel_loads
from braided.control.routing.table import Loads

__all__ = [
    "HotKeyRule",
    "KeyToSplit",
    "PinChange",
    "balance_bound",
    "free_slot",
    "has_room_to_split",
    "load_if_split",
    "pin_change",
    "share_slots",
]


@dataclass(frozen=True)
class HotKeyRule:
    """Shares are of a channel's fair load: the operator's load over its channels."""

    pin_share: float = 0.5
    unpin_share: float = 0.2
    company_share: float = 0.05  # of the key's own load: less beside it is not worth a slot
    company_least: float = 0.0  # the same in busy seconds per second
    cool_batches: int = 5
    pins_max: int = 64
    split_share: float = 1.25
    whole_share: float = 0.6
    part_share: float = 0.25  # of each share of a split key: so light that all channels can be even
    shares_max: int = 512
    splits: bool = True  # where an operator can; or hot keys are at most pinned

    def __post_init__(self) -> None:
        if not 0 < self.unpin_share < self.pin_share:
            raise ValueError(
                f"a key pinned above {self.pin_share} and unpinned below {self.unpin_share} of a "
                "channel would come and go"
            )
        if not 0 < self.whole_share < self.split_share:
            raise ValueError(
                f"a key split above {self.split_share} and whole below {self.whole_share} of a "
                "channel would come and go"
            )

    @property
    def may_split(self) -> bool:
        """Whether a key may be split at all: who pins none splits none."""
        return self.splits and self.pins_max > 0


@dataclass(frozen=True)
class KeyToSplit:
    """A key that is to be split, and the slots that its rows go to."""

    key: KeyLoad
    slots: tuple[int, ...]


@dataclass(frozen=True)
class PinChange:
    """Keys to pin and to unpin; `cold` counts for how long pinned keys have been cool."""

    pin: tuple[KeyLoad, ...]
    unpin: tuple[bytes, ...]
    cold: Mapping[bytes, int]
    split: tuple[KeyToSplit, ...] = ()
    whole: tuple[bytes, ...] = ()
    """Split keys that are to be whole again."""


def balance_bound(load: Loads, channels: int, heavy: Iterable[KeyLoad] = ()) -> float:
    """The load that the busiest channel has at least: an equal part, or the hottest key, or a share
    of it.
    """
    hottest = max((key.load / key.shares for key in heavy), default=0.0)
    return max(float(load.sum()) / channels, hottest)


def pin_change(
    operator: OperatorView, channels: int, cold: Mapping[bytes, int], rule: HotKeyRule
) -> PinChange:
    """What to pin and unpin, given which keys are pinned and how long they have been cool."""
    fair = operator.total_load / channels
    heavy = {key.key: key for key in operator.heavy}
    are_split = {pin.key for pin in operator.table.pins if pin.shares}
    cooling = {}
    for key in sorted(operator.pinned):
        load = heavy.get(key)
        share = rule.whole_share if key in are_split else rule.unpin_share
        is_cool = load is None or load.load_max < share * fair
        if operator.rows == 0:  # nothing is said of anybody
            cooling[key] = cold.get(key, 0)
        else:
            cooling[key] = cold.get(key, 0) + 1 if is_cool else 0
    cooled = [key for key, batches in cooling.items() if batches >= rule.cool_batches]
    unpin = tuple(key for key in cooled if key not in are_split)
    stays = operator.can_split and rule.may_split
    whole = tuple(key for key in sorted(are_split) if key in cooled or not stays)
    room = rule.pins_max - len(operator.pinned) + len(unpin)
    split = _split(operator, channels, fair, room, rule)
    room -= sum(each.key.key not in operator.pinned for each in split)
    splitting = {each.key.key for each in split}
    hot = sorted(
        (
            key
            for key in operator.heavy
            if key.key not in operator.pinned
            and key.key not in splitting
            and fair > 0
            and key.load_min > rule.pin_share * fair
            and operator.load[key.slot] - key.load
            > max(rule.company_share * key.load, rule.company_least)
        ),
        key=lambda key: (-key.load, key.key),
    )
    still = {key: batches for key, batches in cooling.items() if key not in cooled}
    return PinChange(tuple(hot[: max(0, room)]), unpin, still, split, whole)


def _split(
    operator: OperatorView, channels: int, fair: float, room: int, rule: HotKeyRule
) -> tuple[KeyToSplit, ...]:
    """The hottest key that has to be split, or split further; one at a time, so that it is known
    what the others are like with it.
    """
    if not operator.can_split or fair <= 0 or not rule.may_split:
        return ()
    for key in sorted(operator.heavy, key=lambda each: (-each.load, each.key)):
        wanted = ceil(key.load_min / (rule.part_share * fair))
        shares = min(wanted, 2 * channels, rule.shares_max)
        if key.shares > 1:
            is_hot = key.load_min > 1.5 * rule.part_share * fair * key.shares
            is_hot = is_hot and shares > key.shares
        else:
            is_hot = key.load_min > rule.split_share * fair
            is_hot = is_hot and (key.key in operator.pinned or room > 0)
            is_hot = is_hot and key.load_min - fair > rule.company_least
        if is_hot:
            slots = share_slots(operator, key, shares)
            if len(slots) > key.shares:
                return (KeyToSplit(key, slots),)
    return ()


def has_room_to_split(operator: OperatorView, key: bytes, rule: HotKeyRule) -> bool:
    """Whether a key is split, or would be when it is hot enough: to do it, a key is pinned."""
    if not operator.can_split or not rule.may_split:
        return False
    return key in operator.pinned or len(operator.pinned) < rule.pins_max


def share_slots(operator: OperatorView, key: KeyLoad, count: int) -> tuple[int, ...]:
    """The slots for the shares of a key, at most so many: each on the channel that has the least
    by then, and there the one with the least work. So no slot has to move for it.
    """
    table = operator.table
    own = next((pin.shares for pin in table.pins if pin.key == key.key), ())
    taken = {slot for pin in table.pins for slot in (pin.slot, *pin.shares)} - set(own)
    load = _load_without(operator, key)
    # Channel by channel, the slot with the least work last.
    order = np.lexsort((-load, table.slots))
    ends = np.cumsum(table.counts())
    left = (ends - table.counts()).tolist()
    nexts = (ends - 1).tolist()
    heap = [(busy, channel) for channel, busy in enumerate(channel_loads(table, load).tolist())]
    heapify(heap)
    chosen: list[int] = []
    while heap and len(chosen) < count:
        busy, channel = heap[0]
        while nexts[channel] >= left[channel] and int(order[nexts[channel]]) in taken:
            nexts[channel] -= 1
        if nexts[channel] < left[channel]:
            heappop(heap)
            continue
        chosen.append(int(order[nexts[channel]]))
        nexts[channel] -= 1
        heapreplace(heap, (busy + key.load / count, channel))
    return tuple(chosen)


def load_if_split(operator: OperatorView, split: KeyToSplit) -> Loads:
    """What slots would have to do, once a key is split."""
    load = _load_without(operator, split.key)
    np.add.at(load, list(split.slots), split.key.load / len(split.slots))
    return load


def _load_without(operator: OperatorView, key: KeyLoad) -> Loads:
    """The loads of slots without that of a key."""
    load = operator.load.copy()
    shares = next((pin.shares for pin in operator.table.pins if pin.key == key.key), ())
    slots = shares or (key.slot,)
    for slot in slots:
        load[slot] = max(0.0, load[slot] - key.load / len(slots))
    return load


def free_slot(operator: OperatorView, donor: int) -> int:
    """The slot for a hot key: the one with the least work, of those the one with the least state.

    There are many more slots than channels, so what it has to share is next to nothing.
    """
    order = np.lexsort((operator.state_bytes, operator.load))
    pins = operator.table.pins
    taken = {donor, *(slot for pin in pins for slot in (pin.slot, *pin.shares))}
    return next((int(slot) for slot in order if int(slot) not in taken), donor)
