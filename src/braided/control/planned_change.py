"""What a change of tables would do, told before anybody does it: which slots go from where to
where, how much state another host has to read for it, and how even the load is then.

A slot moves if it gets another channel, or if its channel gets another host. Only what goes to
another host costs anything: on one host, all channels share one cache. A channel reads its slots
one after the other and beside all others, so a batch waits for the slowest of them, and for one
operator after the other. With a prefetch most of it is read before (`hosts/transition.py`), so that
this is the most that a batch waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from braided.control.measure.moving_cost import MovingRates
from braided.control.routing.balance import imbalance
from braided.control.routing.residence import NOWHERE, Residence
from braided.control.routing.table import Loads, RoutingTable
from braided.control.routing.words import counted, seconds_in_words, size_in_words

__all__ = ["OperatorChange", "PlannedChange", "SlotFacts", "SlotMove", "plan_change"]

_EVERY_HOST_AS_FAST: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class SlotMove:
    """A slot on its way. Hosts are "" where nobody knows them, or there is but one."""

    slot: int
    from_channel: int
    to_channel: int
    from_host: str = ""
    """Where its state is."""
    to_host: str = ""
    to_other_host: bool = False
    """Whether another host has to read its state, of so many bytes."""
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class SlotFacts:
    """What is known of an operator's slots: how they compare in work, their state in bytes, and
    whose cache has it; None where the tables have no hosts.
    """

    load: Loads
    state_bytes: Loads | None = None
    residence: Residence | None = None


@dataclass(frozen=True)
class OperatorChange:
    """What would become of one operator."""

    before: RoutingTable
    after: RoutingTable
    moves: tuple[SlotMove, ...]
    """By slot, ascending."""
    imbalance_before: float
    """The load of the busiest channel over the average one, as it is and as it would be."""
    imbalance_after: float
    pause_s: float
    """What a batch waits for its state, at most."""

    @property
    def channels_before(self) -> int:
        return self.before.channels

    @property
    def channels_after(self) -> int:
        return self.after.channels

    @property
    def is_change(self) -> bool:
        return bool(self.moves) or self.channels_before != self.channels_after

    @property
    def slots_to_other_hosts(self) -> int:
        return sum(move.to_other_host for move in self.moves)

    @property
    def bytes_to_other_hosts(self) -> int:
        return sum(move.bytes for move in self.moves if move.to_other_host)

    def __str__(self) -> str:
        before, after = self.channels_before, self.channels_after
        parts = [f"{before} -> {after} channels" if before != after else counted(after, "channel")]
        slots = self.after.slots.size
        rerouted = sum(move.from_channel != move.to_channel for move in self.moves)
        parts.append(f"{rerouted} of {slots} slots change channels")
        if self.slots_to_other_hosts:
            size = size_in_words(self.bytes_to_other_hosts)
            parts.append(f"{counted(self.slots_to_other_hosts, 'slot')} ({size}) to another host")
        parts.append(f"imbalance {self.imbalance_before:.2f} -> {self.imbalance_after:.2f}")
        return ", ".join(parts)


@dataclass(frozen=True)
class PlannedChange:
    """What would become of every operator of a query. `print` it to read it."""

    operators: Mapping[str, OperatorChange]
    is_prefetched: bool = False
    """Whether state is brought to its new host before the batch that needs it."""
    is_paused_for: bool = False
    """Whether no batch runs while it is brought."""

    @property
    def is_change(self) -> bool:
        return any(operator.is_change for operator in self.operators.values())

    @property
    def slots_moved(self) -> int:
        return sum(len(operator.moves) for operator in self.operators.values())

    @property
    def slots_to_other_hosts(self) -> int:
        return sum(operator.slots_to_other_hosts for operator in self.operators.values())

    @property
    def bytes_to_other_hosts(self) -> int:
        return sum(operator.bytes_to_other_hosts for operator in self.operators.values())

    @property
    def pause_s(self) -> float:
        """What batches wait for state in all, at most; 0 where all of it stays on its host."""
        return sum(operator.pause_s for operator in self.operators.values())

    def __str__(self) -> str:
        changes = [f"{name}: {each}" for name, each in self.operators.items() if each.is_change]
        if not changes:
            return "nothing would change"
        return "\n".join([*changes, self._pause()])

    def _pause(self) -> str:
        if not self.slots_to_other_hosts:
            return "no state goes to another host, so no batch waits for it"
        waits = f"the next batch waits about {seconds_in_words(self.pause_s)} for state"
        if self.is_paused_for:
            return f"{waits}, which is fetched while none runs"
        if not self.is_prefetched:
            return waits
        return f"{waits} at most: it is fetched before, while batches go on as they are"


def plan_change(
    before: Mapping[str, RoutingTable],
    after: Mapping[str, RoutingTable],
    facts: Mapping[str, SlotFacts],
    rates: MovingRates | None = None,
    speeds: Mapping[str, float] = _EVERY_HOST_AS_FAST,
    is_prefetched: bool = False,
) -> PlannedChange:
    """What leads from some tables to others, by operator; both have the same ones.

    `rates` are what moving was seen to cost, `speeds` those of hosts, of which the fastest has 1.
    """
    if before.keys() != after.keys():
        raise ValueError(f"tables of {', '.join(before)} do not become tables of {[*after]}")
    costs = rates or MovingRates()
    return PlannedChange(
        {
            name: _operator_change(table, after[name], facts[name], costs, speeds)
            for name, table in before.items()
        },
        is_prefetched,
    )


def _operator_change(
    before: RoutingTable,
    after: RoutingTable,
    facts: SlotFacts,
    rates: MovingRates,
    speeds: Mapping[str, float],
) -> OperatorChange:
    if before.slots.size != after.slots.size:
        raise ValueError(f"{before.slots.size} slots do not become {after.slots.size}")
    moves = _moves(before, after, facts)
    return OperatorChange(
        before,
        after,
        moves,
        imbalance(before, facts.load, _channel_speeds(before, speeds)),
        imbalance(after, facts.load, _channel_speeds(after, speeds)),
        _pause_s(moves, rates),
    )


def _moves(before: RoutingTable, after: RoutingTable, facts: SlotFacts) -> tuple[SlotMove, ...]:
    old, new = _hosts_of_slots(before), _hosts_of_slots(after)
    is_elsewhere = (old != new) & (old != "") & (new != "")
    moved = np.flatnonzero((before.slots != after.slots) | is_elsewhere)
    at = old if facts.residence is None else _hosts_by_residence(facts.residence, old)
    # Who has no host yet is not where anything is.
    is_read = (at != new) | (new == "") if after.hosts else np.zeros(new.size, dtype=bool)
    size = np.zeros(new.size) if facts.state_bytes is None else np.rint(facts.state_bytes)
    return tuple(
        SlotMove(
            slot,
            int(before.slots[slot]),
            int(after.slots[slot]),
            str(at[slot]),
            str(new[slot]),
            bool(is_read[slot]),
            int(size[slot]),
        )
        for slot in moved.tolist()
    )


def _hosts_of_slots(table: RoutingTable) -> npt.NDArray[np.str_]:
    hosts = np.array(table.hosts or ("",) * table.channels, dtype=np.str_)
    of_slots: npt.NDArray[np.str_] = hosts[table.slots]
    return of_slots


def _hosts_by_residence(
    residence: Residence, otherwise: npt.NDArray[np.str_]
) -> npt.NDArray[np.str_]:
    """Whose cache has each slot; where nobody's has it, whose would have it by the table."""
    names = np.array([*residence.hosts, ""], dtype=np.str_)
    return np.where(residence.of_slot == NOWHERE, otherwise, names[residence.of_slot])


def _pause_s(moves: tuple[SlotMove, ...], rates: MovingRates) -> float:
    by_channel: dict[int, list[int]] = {}
    for move in moves:
        if move.to_other_host:
            by_channel.setdefault(move.to_channel, []).append(move.bytes)
    return max((rates.expected_s(sum(s), len(s)) for s in by_channel.values()), default=0.0)


def _channel_speeds(table: RoutingTable, speeds: Mapping[str, float]) -> Loads | None:
    of_channels = np.array([speeds.get(host, 1.0) for host in table.hosts])
    return of_channels if (of_channels < 1).any() else None
