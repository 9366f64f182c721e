"""Rebalancing without moving state: slots change channels, but no slot changes hosts."""

from __future__ import annotations

import numpy as np

from braided.control.routing.balance import THETA, rebalance
from braided.control.routing.table import Loads, RoutingTable

__all__ = ["rebalance_within_hosts"]


def rebalance_within_hosts(
    table: RoutingTable, load: Loads, speeds: Loads | None = None, theta: float = THETA
) -> RoutingTable:
    """The next table, with the channels of every host as even as single moves between them lead to;
    the same one if none helps.
    """
    slots = table.slots.copy()
    for host in dict.fromkeys(name for name in table.hosts if name):
        channels = np.flatnonzero(np.array(table.hosts) == host)
        mine = np.flatnonzero(np.isin(table.slots, channels))
        if channels.size < 2 or not mine.size:
            continue
        number = np.zeros(table.channels, dtype=np.int32)
        number[channels] = np.arange(channels.size)
        part = RoutingTable(0, int(channels.size), number[table.slots[mine]])
        own = None if speeds is None else speeds[channels]
        slots[mine] = channels[rebalance(part, load[mine], theta, speeds=own).slots]
    return table.next(slots)
