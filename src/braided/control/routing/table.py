"""The routing table: which slot a key is in, which channel owns it, and on which host that should
run, from epoch to epoch.

A key is in the slot of its hash, unless it is assigned to another or, what comes first, pinned to
one. A table is a value. Whatever changes the routing makes a new table with the next epoch, and the
engine puts it into effect between two batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from braided.control.routing.key_assignment import NO_KEYS, KeyAssignment

__all__ = ["Loads", "Pin", "RoutingTable", "Slots", "moves"]

Slots = npt.NDArray[np.int32]
Loads = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pin:
    """A key that is not in the slot of its hash, or whose rows are spread over several slots.

    Rows are recognised by two 64-bit hashes of their key; the bytes of the key say where its
    state is.
    """

    key: bytes
    hash: int
    check: int
    slot: int
    """Where its state is."""
    shares: tuple[int, ...] = ()
    """Of a split key: the slots that its rows are dealt out to; its state stays where it is."""


@dataclass(frozen=True, eq=False)
class RoutingTable:
    """Slot number to channel number; every slot has exactly one channel below `channels`."""

    epoch: int
    channels: int
    slots: Slots
    pins: tuple[Pin, ...] = ()
    hosts: tuple[str, ...] = ()
    """Where each channel should run, "" for one that has no host yet; empty where all is one host.
    It is a wish: a channel that runs elsewhere reads its state there, and is as right.
    """
    assigned: KeyAssignment = NO_KEYS
    """Keys that have a slot of their own choosing, any number of them; pins come first."""

    def __post_init__(self) -> None:
        slots = np.asarray(self.slots)
        if slots.ndim != 1 or slots.size == 0 or slots.dtype.kind not in "iu":
            raise ValueError("a routing table is one row of channel numbers, at least one")
        if self.channels < 1:
            raise ValueError(f"a routing table needs a channel, not {self.channels}")
        if slots.min() < 0 or slots.max() >= self.channels:
            slot = int(np.flatnonzero((slots < 0) | (slots >= self.channels))[0])
            raise ValueError(
                f"slot {slot} is routed to channel {slots[slot]}, "
                f"and there are {self.channels} channels"
            )
        pinned_to = {slot for pin in self.pins for slot in (pin.slot, *pin.shares)}
        if any(not 0 <= slot < slots.size for slot in pinned_to):
            raise ValueError(f"a key is pinned to a slot that is not there; there are {slots.size}")
        if any(len(set(pin.shares)) != len(pin.shares) for pin in self.pins):
            raise ValueError("a split key has a slot twice among its shares")
        if not self.assigned.is_outline and self.assigned.slots.max(initial=0) >= slots.size:
            raise ValueError(
                f"a key is assigned to slot {self.assigned.slots.max()}, and there are {slots.size}"
            )
        if self.hosts and len(self.hosts) != self.channels:
            raise ValueError(f"{self.channels} channels have {len(self.hosts)} hosts")
        # A copy, so that nobody can change a table that is in use.
        copy = np.array(slots, dtype=np.int32)
        copy.setflags(write=False)
        object.__setattr__(self, "slots", copy)

    @classmethod
    def initial(cls, slots: int, channels: int) -> RoutingTable:
        """The first table: slots dealt out in turn, so that counts differ by at most one."""
        return cls(0, channels, np.arange(slots, dtype=np.int32) % np.int32(channels))

    def of(self, channel: int) -> Slots:
        """The slots of a channel, ascending."""
        return np.flatnonzero(self.slots == channel).astype(np.int32)

    def counts(self) -> npt.NDArray[np.int64]:
        """How many slots each channel has."""
        return np.bincount(self.slots, minlength=self.channels)

    def next(self, slots: npt.ArrayLike, channels: int | None = None) -> RoutingTable:
        """The table after this one; this one itself when nothing differs. Channels that stay keep
        their hosts.
        """
        channels = channels or self.channels
        hosts = (*self.hosts, *[""] * channels)[:channels] if self.hosts else ()
        after = RoutingTable(
            self.epoch + 1, channels, np.asarray(slots), self.pins, hosts, self.assigned
        )
        same = after.channels == self.channels and np.array_equal(after.slots, self.slots)
        return self if same else after

    def as_next_of(self, before: RoutingTable) -> RoutingTable:
        """This table as the epoch after another, however many steps led to it; that one itself if
        nothing differs.
        """
        same = replace(self, epoch=before.epoch)
        return before if same == before else replace(self, epoch=before.epoch + 1)

    def outlined(self) -> RoutingTable:
        """The table with the outline of the keys that are assigned, to be remembered."""
        return replace(self, assigned=self.assigned.outline()) if self.assigned.count else self

    def routes_as(self, other: RoutingTable) -> bool:
        """Whether this is that table, wherever its channels run."""
        return self.epoch == other.epoch and self.divides_as(other)

    def divides_as(self, other: RoutingTable) -> bool:
        """Whether channels have the same keys by both, at whatever epoch and wherever they run."""
        return (
            self.channels == other.channels
            and np.array_equal(self.slots, other.slots)
            and self.keeps_keys_of(other)
        )

    def keeps_keys_of(self, other: RoutingTable) -> bool:
        """Whether every key is in the slot that it is in by the other table, and split as there."""
        return self.pins == other.pins and self.assigned == other.assigned

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RoutingTable):
            return NotImplemented
        return self.hosts == other.hosts and self.routes_as(other)

    def __hash__(self) -> int:
        slots = self.slots.tobytes()
        return hash((self.epoch, self.channels, slots, self.pins, self.hosts, self.assigned))


def moves(old: RoutingTable, new: RoutingTable) -> Slots:
    """The slots that have another channel in `new` than in `old`, ascending."""
    return np.flatnonzero(old.slots != new.slots).astype(np.int32)
