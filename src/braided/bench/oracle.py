"""How many channels somebody would have who knew the load: what `braided bench scale` compares
policies with.

A batch takes its busiest channel's time, and what it takes beside that: Spark's part of it, and the
sink's. The oracle knows how many rows come in each interval, what a row costs and what a batch
takes beside, all as measured in the run that it is compared with. It has the fewest channels that
are busy for four fifths of the time that is left to them, which is what a policy aims at by
default. Where no number of channels ends a batch in time, because one key, the cores or the sink
are too slow, it has the fewest whose batch is within a tenth of the shortest. Its channels change
with every interval and that costs it nothing, so nobody is quite as good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Plant"]

_UTILISATION = 0.8
_NEAR = 1.1


@dataclass(frozen=True)
class Plant:
    """What rows cost and what batches take beside them.

    `hot_share` of the rows have one key and so one channel, and `cores` is how many channels can
    work at a time: those that compute share them.
    """

    interval_s: float
    row_s: float
    aside_s: float
    most: int
    sink_row_s: float = 0.0
    hot_share: float = 0.0
    cores: int | None = None

    def batch_s(self, rows: float, channels: int) -> float:
        """How long a batch of so many rows takes."""
        return self._aside_s(rows) + self._busiest_s(rows, channels)

    def needed(self, rows: float) -> int:
        """The oracle's channels for so many rows in an interval."""
        room_s = _UTILISATION * (self.interval_s - self._aside_s(rows))
        shortest_s = self.batch_s(rows, self.most)
        for channels in range(1, self.most):
            if self._busiest_s(rows, channels) <= room_s:
                return channels
        near = (n for n in range(1, self.most) if self.batch_s(rows, n) <= _NEAR * shortest_s)
        return next(near, self.most)

    def own_channel_s(self, rows: Sequence[float]) -> float:
        """What the oracle's channels cost over intervals with so many rows each."""
        return sum(self._held_s(each, self.needed(each)) for each in rows)

    def fixed_channel_s(self, rows: Sequence[float]) -> float:
        """What it costs to have all the time as many as are needed at most."""
        most = max(map(self.needed, rows))
        return sum(self._held_s(each, most) for each in rows)

    def late_s(self, rows: Sequence[float]) -> float:
        """Batches that take longer than this need not have: a tenth more than the interval, or
        than the oracle's longest batch, where that does not end within the interval.
        """
        longest_s = max(self.batch_s(each, self.needed(each)) for each in rows)
        return _NEAR * max(self.interval_s, longest_s)

    def _held_s(self, rows: float, channels: int) -> float:
        return channels * max(self.interval_s, self.batch_s(rows, channels))

    def _aside_s(self, rows: float) -> float:
        return self.aside_s + rows * self.sink_row_s

    def _busiest_s(self, rows: float, channels: int) -> float:
        together = channels if self.cores is None else min(channels, self.cores)
        return rows * self.row_s * max(1 / together, self.hot_share)
