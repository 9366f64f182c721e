"""What a batch did on each host, for the progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braided.control.routing.table import RoutingTable
from braided.hosts.host_map import HostMap
from braided.tasks.reports import ChannelReport

__all__ = ["work_of_hosts"]


def work_of_hosts(
    table: RoutingTable, reports: Sequence[ChannelReport], hosts: HostMap
) -> dict[str, Any]:
    """The channels of one operator by the host that ran them, and what they had to read there."""
    found: dict[str, dict[str, float]] = {}
    elsewhere = 0
    for report in reports:
        host = hosts.host_of(report.executor)
        if any(table.hosts) and host != table.hosts[report.channel]:
            elsewhere += 1
        work = found.setdefault(
            host,
            {"channels": 0, "cacheHits": 0, "caughtUp": 0, "bytesCaughtUp": 0, "waitedMs": 0.0},
        )
        work["channels"] += 1
        work["cacheHits"] += report.cache_hits
        work["caughtUp"] += report.caught_up + report.rebuilt
        work["bytesCaughtUp"] += report.bytes_caught_up
        work["waitedMs"] = round(work["waitedMs"] + report.waited_ns / 1e6, 2)
    return {"plannedHosts": list(table.hosts), "elsewhere": elsewhere, "hosts": found}
