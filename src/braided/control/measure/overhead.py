"""What a batch takes beside its work, as it depends on the number of channels.

Every channel is a task that has to be planned, started and heard, so the overhead grows with them,
on a small machine by much. Who does not know that takes channels to make up for an overhead that
the channels are the cause of. So the overhead is kept per number of channels, and what one more
adds is the slope of a line through them. As long as only one number has been seen, half of what it
took is put down to its channels.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from braided.control.measure.window import LENGTH_BATCHES, Recent

__all__ = ["Overhead"]

_UNKNOWN = 0.5
"""The part of an overhead that is put down to channels as long as nobody knows."""
_NUMBERS = 6
"""Numbers of channels that are remembered, those last seen."""


class Overhead:
    """The overhead of one flow."""

    def __init__(self, length_batches: int = LENGTH_BATCHES) -> None:
        self._length = length_batches
        self._seen: OrderedDict[int, Recent] = OrderedDict()
        self._now = 0

    def add(self, channels: int, overhead_s: float) -> None:
        """A batch on so many channels, those of all operators together."""
        self._now = channels
        seen = self._seen.setdefault(channels, Recent(self._length))
        self._seen.move_to_end(channels)
        seen.add(max(0.0, overhead_s))
        while len(self._seen) > _NUMBERS:
            self._seen.popitem(last=False)

    def seconds(self) -> float:
        """Of a batch on as many channels as the last one had."""
        return self._seen[self._now].mean() if self._seen else 0.0

    def per_channel_s(self) -> float:
        """What one more channel adds; never less than nothing, and no more than there is."""
        if not self._now:
            return 0.0
        most = self.seconds() / self._now
        if len(self._seen) == 1:
            return _UNKNOWN * most
        channels = np.array(list(self._seen), dtype=np.float64)
        took = np.array([recent.mean() for recent in self._seen.values()])
        weights = np.array([len(recent.values()) for recent in self._seen.values()])
        off = channels - np.average(channels, weights=weights)
        slope = float((weights * off * took).sum() / (weights * off**2).sum())
        return min(max(0.0, slope), most)
