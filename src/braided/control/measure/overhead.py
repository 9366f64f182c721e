"""What a batch takes beside its work, as it depends on the number of channels.

Every channel is a task that has to be planned, started and heard, so the overhead grows with them,
on a small machine by much. Who does not know that takes channels to make up for an overhead that
the channels are the cause of. So the overhead is kept per number of channels, and what one more
adds is the slope of a line through them. As long as only one number has been seen, half of what it
took is put down to its channels.

What a late batch takes beside its work may be its rows' doing all the same: a sink that is as slow
for many channels as for few takes the longer, the more rows there are. So of an overhead that much
is *known* to come with every batch that batches in time had, or that there was with every number of
channels, as long as there have been several.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from braided.control.measure.window import LENGTH_BATCHES, Recent

__all__ = ["Overhead"]

_PART_OF_CHANNELS = 0.5
"""The part of an overhead that is put down to channels as long as nobody knows."""
_NUMBERS = 6
"""Numbers of channels that are remembered, those last seen."""


class Overhead:
    """The overhead of one flow."""

    def __init__(self, length_batches: int = LENGTH_BATCHES) -> None:
        self._length = length_batches
        self._by_channels: OrderedDict[int, Recent] = OrderedDict()
        self._channels = 0
        self._in_time = Recent(length_batches)

    def add(self, channels: int, overhead_s: float, is_late: bool = True) -> None:
        """A batch on so many channels, those of all operators together."""
        if not is_late:
            self._in_time.add(max(0.0, overhead_s))
        self._channels = channels
        recent = self._by_channels.setdefault(channels, Recent(self._length))
        self._by_channels.move_to_end(channels)
        recent.add(max(0.0, overhead_s))
        while len(self._by_channels) > _NUMBERS:
            self._by_channels.popitem(last=False)

    def seconds(self) -> float:
        """Of a batch on as many channels as the last one had."""
        return self._by_channels[self._channels].mean() if self._by_channels else 0.0

    def known_s(self) -> float:
        """The part of it that has nothing to do with how many rows there are, as far as is seen."""
        in_time_s = self._in_time.mean()
        if not self.is_known:
            return in_time_s
        seen_s, least_s = self.seconds(), min(each.mean() for each in self._by_channels.values())
        of_channels_s = self.per_channel_s() * self._channels
        if of_channels_s > seen_s / 2:
            least_s = min(least_s, seen_s - of_channels_s)
        return max(in_time_s, least_s)

    @property
    def is_known(self) -> bool:
        """Whether what one more channel adds has been seen."""
        return len(self._by_channels) > 1

    def per_channel_s(self) -> float:
        """What one more channel adds; never less than nothing, and no more than there is."""
        if not self._channels:
            return 0.0
        most = self.seconds() / self._channels
        if len(self._by_channels) == 1:
            return _PART_OF_CHANNELS * most
        channels = np.array(list(self._by_channels), dtype=np.float64)
        seconds = np.array([recent.mean() for recent in self._by_channels.values()])
        weights = np.array([len(recent.values()) for recent in self._by_channels.values()])
        off = channels - np.average(channels, weights=weights)
        slope = float((weights * off * seconds).sum() / (weights * off**2).sum())
        return min(max(0.0, slope), most)
