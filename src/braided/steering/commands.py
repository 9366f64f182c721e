"""What a user asks of a running query, and what its controller proposes.

Both take effect at the next batch boundary. A user comes first: a proposal was made for the table
of then, and is dropped when that table is not there any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from braided.control.routing.balance import rebalance
from braided.control.routing.pins import pin_key, unpin_key
from braided.control.routing.rescale import rescale
from braided.control.routing.table import Pin, RoutingTable
from braided.spark.tick import Bell

__all__ = ["Commands"]

_Change = Callable[[RoutingTable, Any], RoutingTable]


class Commands:
    """Asked for, not yet in effect."""

    def __init__(self, tables: Mapping[str, RoutingTable], bell: Bell) -> None:
        self._lock = threading.Lock()
        self._tables = dict(tables)
        self._bell = bell
        self._waiting: list[tuple[str, _Change]] = []
        self._proposed: dict[str, RoutingTable] = {}
        self._repinned: dict[str, Pin | bytes] = {}
        self._taken = 0
        self._held: dict[str, RoutingTable] = {}
        self._commanded: set[str] = set()
        """Operators with a table that a user asked for, from when it is taken until it holds."""
        self._cut: int | None = None

    def check_rescale(self, channels: int, operator: str | None) -> list[str]:
        """The operators that it would be; refuses a number that can't be."""
        names = self._names(operator)
        if isinstance(channels, bool) or not isinstance(channels, int) or channels < 1:
            raise ValueError(f"rescale takes a number of channels of at least 1, not {channels!r}")
        for name in names:
            slots = len(self._tables[name].slots)
            if channels > slots:
                raise ValueError(
                    f"operator {name!r} has {slots} slots, so {channels} channels would leave "
                    "some without any; the number of slots is fixed at the first start "
                    "(braided.slots)"
                )
        return names

    def rescale(self, channels: int, operator: str | None) -> None:
        names = self.check_rescale(channels, operator)
        self._ask(names, lambda table, load: rescale(table, channels, load))

    def rebalance(self, operator: str | None) -> None:
        self._ask(self._names(operator), rebalance)

    def cut_next(self, rows: int) -> None:
        """The next batch processes at most so many rows per channel; the rest is carried."""
        with self._lock:
            self._cut = rows
        self._bell.ring()

    def propose(self, tables: Mapping[str, RoutingTable]) -> None:
        """Tables for the next batch, if nobody asks for others. Asks for no batch."""
        with self._lock:
            self._proposed.update(tables)

    def propose_pin(self, name: str, change: Pin | bytes) -> None:
        """A key to pin, or the bytes of one to let go, with the next batch."""
        with self._lock:
            self._repinned[name] = change

    def take(
        self, load_of: Callable[[str], Any], at_least: Mapping[str, int] | None = None
    ) -> dict[str, RoutingTable]:
        """The tables of the batch that begins now; `at_least` so many channels, by operator, where
        no user asked for others.
        """
        with self._lock:
            tables = dict(self._tables)
            for name, held in self._held.items():
                if name in self._proposed and _routes_alike(held, tables[name]):
                    continue  # it was for the sake of hosts, and what is proposed gets its own
                tables[name] = replace(held, epoch=tables[name].epoch + 1)
            self._held = {}
            for name, change in self._waiting:
                tables[name] = change(tables[name], load_of(name))
            self._taken = len(self._waiting)
            for name, proposed in self._proposed.items():
                before = self._tables[name]
                fits = proposed.epoch == before.epoch + 1 and proposed.pins == before.pins
                if tables[name] is before and fits:
                    tables[name] = proposed
            self._proposed.clear()
            self._commanded |= {name for name, _ in self._waiting}
            for name, channels in (at_least or {}).items():
                if name not in self._commanded and tables[name].channels < channels:
                    more = rescale(tables[name], channels, load_of(name))
                    tables[name] = replace(more, epoch=self._tables[name].epoch + 1)
            for name, repinned in self._repinned.items():
                tables[name] = _with_pins(tables[name], repinned, self._tables[name].epoch + 1)
            self._repinned.clear()
            return tables

    def hold(self, tables: Mapping[str, RoutingTable]) -> None:
        """Tables that were taken and do not take effect yet: what they need is on its way. The
        next batch takes them again, with what is asked for meanwhile.
        """
        with self._lock:
            self._held = dict(tables)
            del self._waiting[: self._taken]
            self._taken = 0

    def cut(self) -> int | None:
        with self._lock:
            cut, self._cut = self._cut, None
            return cut

    def done(self, tables: Mapping[str, RoutingTable]) -> None:
        """The batch is committed, and what was taken is in effect."""
        with self._lock:
            self._tables = dict(tables)
            self._commanded &= self._held.keys()
            del self._waiting[: self._taken]
            self._taken = 0
            more = bool(self._waiting)
        if more:
            self._bell.ring()

    def _ask(self, names: list[str], change: _Change) -> None:
        with self._lock:
            self._waiting += [(name, change) for name in names]
        self._bell.ring()

    def _names(self, operator: str | None) -> list[str]:
        if operator is None:
            return list(self._tables)
        if operator not in self._tables:
            raise ValueError(
                f"there is no operator {operator!r} in this query; it has {', '.join(self._tables)}"
            )
        return [operator]


def _routes_alike(table: RoutingTable, other: RoutingTable) -> bool:
    """Whether they differ in hosts and epoch only."""
    return replace(table, epoch=other.epoch, hosts=other.hosts) == other


def _with_pins(table: RoutingTable, change: Pin | bytes, epoch: int) -> RoutingTable:
    # Several commands at once may have gone further than one epoch.
    epoch = max(epoch, table.epoch)
    if isinstance(change, bytes):
        return unpin_key(table, change, epoch)
    return pin_key(table, change, epoch)
