"""Where the state of slots is: whose cache has a slot, and so who opens it without reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from braided.control.routing.table import RoutingTable, Slots

__all__ = ["NOWHERE", "Residence"]

NOWHERE = -1


@dataclass(frozen=True, eq=False)
class Residence:
    """Whose cache has a slot now: a number per slot, which is an index of `hosts`, -1 for nobody's.

    Numbers and not names, because there are many slots and few hosts.
    """

    hosts: tuple[str, ...]
    of_slot: Slots

    def __post_init__(self) -> None:
        of_slot = np.asarray(self.of_slot)
        if of_slot.ndim != 1 or of_slot.dtype.kind not in "iu":
            raise ValueError("a residence is one row of numbers of hosts")
        if of_slot.size and not NOWHERE <= of_slot.min() <= of_slot.max() < len(self.hosts):
            raise ValueError(f"a slot is on a host that is not there; there are {len(self.hosts)}")

    @classmethod
    def nowhere(cls, slots: int) -> Residence:
        """Of slots that nobody has."""
        return cls((), np.full(slots, NOWHERE, dtype=np.int32))

    @classmethod
    def of_table(cls, table: RoutingTable) -> Residence:
        """Of slots that are where their channels should run, after a batch that did."""
        if not table.hosts:
            return cls.nowhere(table.slots.size)
        names = tuple(dict.fromkeys(name for name in table.hosts if name))
        number = {name: n for n, name in enumerate(names)}
        of_channel = np.array([number.get(name, NOWHERE) for name in table.hosts], dtype=np.int32)
        return cls(names, of_channel[table.slots])

    def among(self, hosts: Sequence[str]) -> Slots:
        """The number that the host of each slot has in another list; -1 if it is not there."""
        number = {name: n for n, name in enumerate(hosts)}
        known = [number.get(name, NOWHERE) for name in self.hosts]
        return np.array([*known, NOWHERE], dtype=np.int32)[self.of_slot]
