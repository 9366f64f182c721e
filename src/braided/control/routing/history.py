"""The routing tables that were in effect, one after the other, and the way back along them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from braided.control.routing.pins import hash_slot
from braided.control.routing.table import RoutingTable, moves
from braided.control.routing.words import counted

__all__ = ["KEPT", "Routing", "RoutingHistory", "TablesSince", "words_of_change"]

KEPT = 64
"""So many of the newest ones are remembered."""


@dataclass(frozen=True)
class TablesSince:
    """The tables of all operators, in effect from a batch on until the next of these."""

    batch: int
    """In the oldest of a history they may have been in effect before, too."""
    tables: Mapping[str, RoutingTable]
    """Of keys that were assigned, outlines only: they may be many."""
    change: str
    """What became different with them, in words."""

    @property
    def epochs(self) -> dict[str, int]:
        """The epoch of each table."""
        return {name: table.epoch for name, table in self.tables.items()}

    def __str__(self) -> str:
        return f"batch {self.batch}: {self.change}"


@dataclass(frozen=True)
class RoutingHistory:
    """Tables that were in effect, the newest, which are still in effect, last. A value."""

    entries: tuple[TablesSince, ...] = ()

    def noting(self, batch: int, tables: Mapping[str, RoutingTable]) -> RoutingHistory:
        """The history after a batch by these tables; the same one if they were in effect before."""
        before = self.entries[-1].tables if self.entries else {}
        if before == tables:
            return self
        outlines = {name: table.outlined() for name, table in tables.items()}
        entry = TablesSince(batch, outlines, words_of_change(before, tables))
        return RoutingHistory((*self.entries, entry)[-KEPT:])

    @property
    def steps(self) -> int:
        """How many steps back there are."""
        return sum(_is_step(older, newer) for older, newer in pairwise(self.entries))

    def back(self, steps: int) -> TablesSince | None:
        """The tables so many steps before those in effect; None where there are none. From one step
        to the next slots have other channels: hosts and pins come and go without one.
        """
        for older, newer in reversed([*pairwise(self.entries)]):
            steps -= _is_step(older, newer)
            if steps == 0:
                return older
        return None


class Routing(dict[str, RoutingTable]):
    """The tables in effect, by operator, and what was in effect before."""

    def __init__(self, tables: Mapping[str, RoutingTable], history: RoutingHistory) -> None:
        super().__init__(tables)
        self.history = history.entries
        """The newest last: the tables in effect, once a batch has run by them."""


def words_of_change(before: Mapping[str, RoutingTable], after: Mapping[str, RoutingTable]) -> str:
    """What is different, by operator."""
    parts = []
    for name, table in after.items():
        old = before.get(name)
        if old is None:
            size = f"{counted(table.channels, 'channel')}, {counted(table.slots.size, 'slot')}"
            parts.append(f"operator {name}: {size}")
        elif old != table:
            parts.append(f"operator {name}: {', '.join(_differences(old, table))}")
    return "; ".join(parts)


def _pinned(table: RoutingTable) -> dict[bytes, int]:
    """The keys that are not in the slot of their hash, and where they are."""
    slots = table.slots.size
    return {pin.key: pin.slot for pin in table.pins if pin.slot != hash_slot(pin.hash, slots)}


def _differences(old: RoutingTable, new: RoutingTable) -> list[str]:
    words = []
    if old.channels != new.channels:
        words.append(f"{old.channels} -> {new.channels} channels")
    moved = moves(old, new).size
    if moved:
        words.append(f"{counted(moved, 'slot')} moved")
    pins_before, pins_after = map(_pinned, (old, new))
    pinned = sum(pins_before.get(key) != slot for key, slot in pins_after.items())
    if pinned:
        words.append(f"{counted(pinned, 'key')} pinned")
    let_go = len(pins_before.keys() - pins_after.keys())
    if let_go:
        words.append(f"{counted(let_go, 'key')} let go")
    shares_before, shares_after = ({p.key: p.shares for p in each.pins} for each in (old, new))
    split = sum(bool(s) and shares_before.get(k) != s for k, s in shares_after.items())
    if split:
        words.append(f"{counted(split, 'key')} split")
    whole = sum(bool(s) and not shares_after.get(k) for k, s in shares_before.items())
    if whole:
        words.append(f"{counted(whole, 'key')} whole again")
    if old.assigned != new.assigned:
        words.append(f"{counted(new.assigned.count, 'key')} assigned")
    rehoused = sum(a != b for a, b in zip(old.hosts, new.hosts, strict=False))
    if rehoused:
        words.append(f"{counted(rehoused, 'channel')} on another host")
    if not words and new.hosts and not old.hosts:
        words.append("channels have hosts")
    return words or ["a new epoch"]


def _is_step(older: TablesSince, newer: TablesSince) -> bool:
    """Whether slots have other channels than before; an operator that is new has no before."""
    return any(
        table.channels != newer.tables[name].channels
        or not np.array_equal(table.slots, newer.tables[name].slots)
        for name, table in older.tables.items()
        if name in newer.tables
    )
