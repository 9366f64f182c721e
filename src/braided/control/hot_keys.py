"""Hot keys: when a key gets a slot of its own, and the bound that it sets to any balance.

Rows of one key are processed by one channel, so a key sets a floor under the busiest channel that
no assignment of slots goes below: `balance_bound`. What can be helped is the company it keeps. A
key that is heavy against a channel's fair load and shares its slot with others is *pinned*: it
gets its own slot, and the others move without it. When it has cooled down it is unpinned.

A key is pinned by the lower bound of its load and unpinned by the upper one, so an
estimate that is unsure changes nothing. Tasks count the rows of their heaviest keys exactly
(`tasks/heavy_keys.py`), so in a running query both bounds are the load itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from braided.control.measure.view import KeyLoad, OperatorView
from braided.control.routing.table import Loads

__all__ = ["HotKeyRule", "PinChange", "balance_bound", "free_slot", "pin_change"]


@dataclass(frozen=True)
class HotKeyRule:
    """Shares are of a channel's fair load: the operator's load over its channels."""

    pin_share: float = 0.5
    unpin_share: float = 0.2
    company_share: float = 0.05  # of the key's own load: less beside it is not worth a slot
    company_least: float = 0.0  # the same in busy seconds per second
    cool_batches: int = 5
    pins_max: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.unpin_share < self.pin_share:
            raise ValueError(
                f"a key pinned above {self.pin_share} and unpinned below {self.unpin_share} of a "
                "channel would come and go"
            )


@dataclass(frozen=True)
class PinChange:
    """Keys to pin and to unpin; `cold` counts for how long pinned keys have been cool."""

    pin: tuple[KeyLoad, ...]
    unpin: tuple[bytes, ...]
    cold: Mapping[bytes, int]


def balance_bound(load: Loads, channels: int, heavy: Iterable[KeyLoad] = ()) -> float:
    """The load that the busiest channel has at least: an equal part, or the hottest key."""
    hottest = max((key.load for key in heavy), default=0.0)
    return max(float(load.sum()) / channels, hottest)


def pin_change(
    operator: OperatorView, channels: int, cold: Mapping[bytes, int], rule: HotKeyRule
) -> PinChange:
    """What to pin and unpin, given which keys are pinned and how long they have been cool."""
    fair = operator.total_load / channels
    heavy = {key.key: key for key in operator.heavy}
    cooling = {}
    for key in sorted(operator.pinned):
        load = heavy.get(key)
        is_cool = load is None or load.load_max < rule.unpin_share * fair
        if operator.rows == 0:  # nothing is said of anybody
            cooling[key] = cold.get(key, 0)
        else:
            cooling[key] = cold.get(key, 0) + 1 if is_cool else 0
    unpin = tuple(key for key, batches in cooling.items() if batches >= rule.cool_batches)
    room = rule.pins_max - len(operator.pinned) + len(unpin)
    hot = sorted(
        (
            key
            for key in operator.heavy
            if key.key not in operator.pinned
            and fair > 0
            and key.load_min > rule.pin_share * fair
            and operator.load[key.slot] - key.load
            > max(rule.company_share * key.load, rule.company_least)
        ),
        key=lambda key: (-key.load, key.key),
    )
    return PinChange(tuple(hot[:room]), unpin, {k: n for k, n in cooling.items() if k not in unpin})


def free_slot(operator: OperatorView, donor: int) -> int:
    """The slot for a hot key: the one with the least work, of those the one with the least state.

    There are many more slots than channels, so what it has to share is next to nothing.
    """
    order = np.lexsort((operator.state_bytes, operator.load))
    taken = {donor, *(pin.slot for pin in operator.table.pins)}
    return next((int(slot) for slot in order if int(slot) not in taken), donor)
