"""What a user asks of a running query, and what its controller proposes.

Both take effect at the next batch boundary. A user comes first: a proposal was made for the table
of then, and is dropped when that table is not there any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from braided.control.routing.balance import rebalance
from braided.control.routing.command import Command, TableChange
from braided.control.routing.history import RoutingHistory
from braided.control.routing.key_assignment import KeyAssignment
from braided.control.routing.pins import assign_keys, pin_key, unpin_key
from braided.control.routing.rescale import rescale
from braided.control.routing.table import Pin, RoutingTable
from braided.errors import NoEarlierTableError
from braided.spark.tick import Bell

__all__ = ["Commands", "TablesBeforeAndAfter"]

_LoadOf = Callable[[str], Any]


class TablesBeforeAndAfter(NamedTuple):
    """The tables of all operators, as they are and as they would be."""

    before: dict[str, RoutingTable]
    after: dict[str, RoutingTable]


class _ProposedKeys(NamedTuple):
    """Keys to assign, of all operators in one batch or of none."""

    assigned: Mapping[str, KeyAssignment]
    made_for: Mapping[str, RoutingTable]

    def fits(self, tables: Mapping[str, RoutingTable]) -> bool:
        """Whether slots are on the channels that they were on when it was made."""
        return all(
            tables[name].channels == table.channels
            and np.array_equal(tables[name].slots, table.slots)
            for name, table in self.made_for.items()
        )


class Commands:
    """Asked for, not yet in effect."""

    def __init__(self, tables: Mapping[str, RoutingTable], bell: Bell) -> None:
        self._lock = threading.Lock()
        self._tables = dict(tables)
        self._bell = bell
        self._waiting: list[tuple[str, TableChange]] = []
        self._proposed: dict[str, RoutingTable] = {}
        self._repinned: dict[str, Pin | bytes] = {}
        self._reassigned: _ProposedKeys | None = None
        self._taken_keys: _ProposedKeys | None = None
        self._held_keys: _ProposedKeys | None = None
        self._taken = 0
        self._held: dict[str, RoutingTable] = {}
        self._commanded: set[str] = set()
        """Operators with a table that a user asked for, from when it is taken until it holds."""
        self._cut: int | None = None
        self._holds_input = False

    def to_rescale(self, channels: int, operator: str | None) -> Command:
        """The command for so many channels; refuses a number that can't be."""
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
        return Command(
            dict.fromkeys(names, lambda table, load: rescale(table, channels, load)), channels
        )

    def to_rebalance(self, operator: str | None) -> Command:
        """The command to even out the load."""
        return Command(dict.fromkeys(self._names(operator), rebalance))

    def to_assign(self, assigned: Mapping[str, KeyAssignment]) -> Command:
        """The command to assign keys, and no others, of all these operators in one batch. It holds
        whatever channels their slots are on by then.
        """
        for name in assigned:
            self._names(name)
        return Command({name: _assigning(keys) for name, keys in assigned.items()})

    def to_revert(self, history: RoutingHistory, steps: int) -> Command:
        """The command for the tables so many steps back; refuses where there are none.

        Slots have the channels again that they had then. Keys stay in the slots that they are in.
        """
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"revert takes a number of steps of at least 1, not {steps!r}")
        earlier = history.back(steps)
        if earlier is None:
            raise NoEarlierTableError(
                f"there are no routing tables {steps} steps back: what is known of those that were "
                f"in effect, query.routing().history, has {history.steps} steps"
            )
        return Command(
            {name: _back_to(then) for name, then in earlier.tables.items() if name in self._tables},
            max(table.channels for table in earlier.tables.values()),
        )

    def rescale(self, channels: int, operator: str | None) -> None:
        self.ask(self.to_rescale(channels, operator))

    def ask(self, command: Command) -> None:
        """Has the next batch do it, after what was asked for before, and asks for that batch."""
        with self._lock:
            self._waiting += command.changes.items()
        self._bell.ring()

    def foresee(self, command: Command, load_of: _LoadOf) -> TablesBeforeAndAfter:
        """The tables in effect, and those that a batch would take if a command were asked for now,
        after what waits already; without what the controller proposes. Nothing is changed.
        """
        with self._lock:
            before, after = dict(self._tables), self._as_asked(load_of)
        for name, change in command.changes.items():
            after[name] = change(after[name], load_of(name))
        return TablesBeforeAndAfter(before, after)

    def cut_next(self, rows: int) -> None:
        """The next batch processes at most so many rows per channel; the rest is carried."""
        with self._lock:
            self._cut = rows
        self._bell.ring()

    def hold_input_next(self) -> None:
        """The next batch does what is carried, and carries what it takes in. Asks for no batch."""
        with self._lock:
            self._holds_input = True

    def propose(self, tables: Mapping[str, RoutingTable]) -> None:
        """Tables for the next batch, if nobody asks for others. Asks for no batch."""
        with self._lock:
            self._proposed.update(tables)

    def propose_pin(self, name: str, change: Pin | bytes) -> None:
        """A key to pin, or the bytes of one to let go, with the next batch."""
        with self._lock:
            self._repinned[name] = change

    def propose_assignment(
        self,
        assigned: Mapping[str, KeyAssignment],
        made_for: Mapping[str, RoutingTable] | None = None,
    ) -> None:
        """Keys to assign, and no others, of all these operators with the next batch. Asks for no
        batch.

        A later proposal replaces one that waits. `made_for` are the tables that it counts on: if a
        slot of one of them is on another channel by then, because a user has rescaled say, nothing
        is assigned, and whoever proposed it looks at the new tables and proposes anew.
        """
        for name in assigned:
            self._names(name)
        with self._lock:
            self._reassigned = _ProposedKeys(dict(assigned), dict(made_for or {}))

    def take(
        self, load_of: _LoadOf, at_least: Mapping[str, int] | None = None
    ) -> dict[str, RoutingTable]:
        """The tables of the batch that begins now; `at_least` so many channels, by operator, where
        no user asked for others.
        """
        with self._lock:
            tables = self._as_asked(load_of)
            self._held = {}
            self._taken = len(self._waiting)
            for name, proposed in self._proposed.items():
                before = self._tables[name]
                fits = proposed.epoch == before.epoch + 1 and proposed.keeps_keys_of(before)
                if tables[name] is before and fits:
                    tables[name] = proposed
            self._proposed.clear()
            self._commanded |= {name for name, _ in self._waiting}
            for name, channels in (at_least or {}).items():
                if name not in self._commanded and tables[name].channels < channels:
                    more = rescale(tables[name], channels, load_of(name))
                    tables[name] = replace(more, epoch=self._tables[name].epoch + 1)
            waited, self._held_keys = self._held_keys, None
            if waited is not None and not waited.fits(tables):
                for name in waited.assigned:
                    tables[name] = replace(tables[name], assigned=self._tables[name].assigned)
                waited = None
            keys, self._reassigned = self._reassigned, None
            self._taken_keys = waited if keys is None else keys
            if keys is not None and keys.fits(tables):
                for name, assigned in keys.assigned.items():
                    epoch = max(self._tables[name].epoch + 1, tables[name].epoch)
                    tables[name] = assign_keys(tables[name], assigned, epoch)
            for name, repinned in self._repinned.items():
                tables[name] = _with_pins(tables[name], repinned, self._tables[name].epoch + 1)
            self._repinned.clear()
            return tables

    def spoken_for(self) -> frozenset[str]:
        """Operators whose slots have to stay where they are: a user has asked for a table that does
        not hold yet, or keys that wait for their state were assigned by the one there is.
        """
        with self._lock:
            counted_on = () if self._held_keys is None else self._held_keys.made_for
            return frozenset(self._commanded.union(counted_on))

    def hold(self, tables: Mapping[str, RoutingTable]) -> None:
        """Tables that were taken and do not take effect yet: what they need is on its way. The
        next batch takes them again, with what is asked for meanwhile.
        """
        with self._lock:
            self._held, self._held_keys = dict(tables), self._taken_keys
            del self._waiting[: self._taken]
            self._taken = 0

    def cut(self) -> int | None:
        with self._lock:
            cut, self._cut = self._cut, None
            return cut

    def holds_input(self) -> bool:
        with self._lock:
            holds, self._holds_input = self._holds_input, False
            return holds

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

    def _as_asked(self, load_of: _LoadOf) -> dict[str, RoutingTable]:
        """The tables in effect with what is held, and then with what users have asked for."""
        tables = dict(self._tables)
        for name, held in self._held.items():
            if name in self._proposed and held.divides_as(tables[name]):
                continue  # it was for the sake of hosts, and what is proposed gets its own
            tables[name] = replace(held, epoch=tables[name].epoch + 1)
        for name, change in self._waiting:
            tables[name] = change(tables[name], load_of(name))
        return tables

    def _names(self, operator: str | None) -> list[str]:
        if operator is None:
            return list(self._tables)
        if operator not in self._tables:
            raise ValueError(
                f"there is no operator {operator!r} in this query; it has {', '.join(self._tables)}"
            )
        return [operator]


def _back_to(earlier: RoutingTable) -> TableChange:
    """Slots and channels as they were; pins, and hosts of channels that stay, as they are."""
    return lambda table, _: table.next(earlier.slots, earlier.channels)


def _assigning(assigned: KeyAssignment) -> TableChange:
    return lambda table, _: assign_keys(table, assigned, table.epoch + 1)


def _with_pins(table: RoutingTable, change: Pin | bytes, epoch: int) -> RoutingTable:
    # Several commands at once may have gone further than one epoch.
    epoch = max(epoch, table.epoch)
    if isinstance(change, bytes):
        return unpin_key(table, change, epoch)
    return pin_key(table, change, epoch)
