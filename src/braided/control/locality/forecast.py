"""What a table of keys will bring on rows to come: judged by rows that it was not made from.

METIS promised the authors of the paper 75 % of rows that stay, and 49-50 % did: keys that were not
seen before go by their hash, and pairs that were seen once are seldom seen again. So a part of the
rows is held out, a plain sample of all of them, and never goes into the graph. A held-out row whose
keys the table knows stays or not; of one with a key that it does not know, the chance is that of
the hash.

What is still to come differs from that by drift, which past reconfigurations have shown: `Record`
keeps what was promised and what came, and what it was off by is taken off the next promise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from braided.control.locality.graph import HostRoom, Numbers
from braided.control.routing.table import Loads

__all__ = ["Forecast", "HeldOut", "KeyCosts", "Record", "forecast"]

_REMEMBERED = 4


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows from one operator to another that no graph has seen: the numbers of their two keys, -1
    for a key that the graph does not have, and what each row stands for.
    """

    operators: tuple[int, int]
    keys: Numbers  # one row each: here, there
    weight: Loads


@dataclass(frozen=True)
class Forecast:
    """What is expected of rows to come."""

    locality: float
    """The share of rows that stay on their host."""
    closeness: float
    """The same, with those that stay in their zone counted in part."""
    imbalance: float
    """The most that a host has of an operator, over its part; the worst operator counts."""
    known: float
    """The share of rows of which the table knows both keys."""


@dataclass(frozen=True, eq=False)
class KeyCosts:
    """What keys cost in time: a row of each, and all keys that are known, by operator."""

    row_s: Loads
    total: Loads


def forecast(
    held_out: Sequence[HeldOut],
    host_of: Numbers,
    room: HostRoom,
    costs: KeyCosts | None = None,
) -> Forecast | None:
    """What keys on these hosts come to; None where nothing was held out.

    With costs, balance is that of time: known keys have what they cost, in the shares that held-out
    rows say, and all others what the hosts have of them now. Without, a row is a row.
    """
    total = sum(float(each.weight.sum()) for each in held_out)
    if total <= 0:
        return None
    spread = room.spread()
    local = close = known = 0.0
    loads = np.zeros_like(room.capacity)
    same = np.eye(room.hosts)
    where = np.append(host_of, -1)  # so that -1, a key that is not there, stays -1
    for each in held_out:
        here, there = where[each.keys[:, 0]], where[each.keys[:, 1]]
        known += float(each.weight[(here >= 0) & (there >= 0)].sum())
        local += _weight_on_one_host(each, here, there, spread, same)
        close += _weight_on_one_host(each, here, there, spread, room.closeness)
        for side, (operator, host) in enumerate(zip(each.operators, (here, there), strict=True)):
            found = host >= 0
            weight = each.weight[found]
            if costs is not None:
                weight = weight * costs.row_s[each.keys[found, side]]
            else:
                loads[operator] += float(each.weight[~found].sum()) * spread[operator]
            loads[operator] += np.bincount(host[found], weight, room.hosts)
    if costs is not None:
        seen = loads.sum(axis=1)
        scale = np.divide(costs.total, seen, out=np.zeros_like(seen), where=seen > 0)
        loads = room.fixed + loads * scale[:, None]
    parts = room.capacity * loads.sum(axis=1, keepdims=True)
    filled = np.divide(loads, parts, out=np.zeros_like(loads), where=parts > 0)
    return Forecast(local / total, close / total, max(1.0, float(filled.max())), known / total)


def _weight_on_one_host(
    rows: HeldOut, here: Numbers, there: Numbers, spread: Loads, closeness: Loads
) -> float:
    """The weight of rows whose keys are together, expected where a key goes by its hash."""
    first, second = rows.operators
    by_hash = np.append(closeness @ spread[second], spread[first] @ closeness @ spread[second])
    from_hash = spread[first] @ closeness
    chance = np.where(there >= 0, closeness[here, there], by_hash[here])
    chance = np.where((here < 0) & (there >= 0), from_hash[there], chance)
    return float((rows.weight * chance).sum())


class Record:
    """What was promised and what came of it, of the last reconfigurations."""

    def __init__(self, past: Sequence[tuple[float, float]] = ()) -> None:
        self._past: deque[tuple[float, float]] = deque(past, maxlen=_REMEMBERED)

    def add(self, promised: float, came: float) -> None:
        """A promise as it was before anything was taken off it."""
        self._past.append((promised, came))

    @property
    def bias(self) -> float:
        """By how much more came than was promised, on average."""
        return float(np.mean([came - said for said, came in self._past])) if self._past else 0.0

    def corrected(self, promised: float) -> float:
        return min(1.0, max(0.0, promised + self.bias))

    def past(self) -> list[tuple[float, float]]:
        """For the manifest."""
        return list(self._past)
