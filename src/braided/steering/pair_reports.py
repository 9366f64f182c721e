"""What channels report of pairs of keys, as the controller takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braided.control.locality.gain import RemotePrices
from braided.control.locality.keys import Edge
from braided.control.locality.statistics import PairCounts
from braided.control.worth import Prices
from braided.tasks.reports import ChannelReport

__all__ = ["pairs_of", "remote_prices"]


def pairs_of(reports: Mapping[str, Sequence[ChannelReport]]) -> dict[Edge, list[PairCounts]]:
    """The pairs that channels have counted in a batch, by operator and the one that it feeds."""
    found: dict[Edge, list[PairCounts]] = {}
    for name, channels in reports.items():
        for report in channels:
            for pairs in report.pairs:
                found.setdefault((name, pairs.operator), []).append(pairs.decode())
    return found


def remote_prices(reports: Mapping[str, Sequence[ChannelReport]], prices: Prices) -> RemotePrices:
    """What rows between hosts cost: as large as the rows of operators that others feed are, at the
    rate at which state was seen to be read.
    """
    fed = {pairs.operator for each in reports.values() for r in each for pairs in r.pairs}
    channels = [report for name in fed for report in reports.get(name, ())]
    rows = sum(report.rows_in for report in channels)
    size = sum(report.bytes_in for report in channels)
    known = RemotePrices(
        bytes_per_s=prices.bytes_per_s,
        moved_bytes_per_s=prices.bytes_per_s,
        horizon_s=prices.horizon_s,
    )
    if not rows:
        return known
    return RemotePrices(
        row_bytes=size / rows,
        bytes_per_s=known.bytes_per_s,
        moved_bytes_per_s=known.moved_bytes_per_s,
        horizon_s=known.horizon_s,
    )
