"""The batches of a run on a clock that starts when rows begin to count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

__all__ = ["Timeline"]


@dataclass(frozen=True)
class Timeline:
    """When each batch began and how long it took, and what one operator had and did in it."""

    starts_s: tuple[float, ...]
    took_s: tuple[float, ...]
    channels: tuple[int, ...]
    rows: tuple[int, ...]
    busy_s: tuple[float, ...]
    """Of all channels together."""
    busiest_s: tuple[float, ...]

    @staticmethod
    def of(batches: Sequence[Any], operator: str, begun_s: float) -> Timeline:
        """From the progress of batches with rows, beginning with the one that ran at `begun_s`."""
        at_s = [_time_s(batch["timestamp"]) - begun_s for batch in batches]
        first = max((n for n, each in enumerate(at_s) if each <= 0), default=0)
        counted = batches[first:]
        shown = [batch["braided"]["operators"][operator] for batch in counted]
        return Timeline(
            starts_s=tuple(at_s[first:]),
            took_s=tuple(batch["durationMs"]["triggerExecution"] / 1000 for batch in counted),
            channels=tuple(each["channels"] for each in shown),
            rows=tuple(each["rows"] for each in shown),
            busy_s=tuple(sum(each["busyMs"]) / 1000 for each in shown),
            busiest_s=tuple(max(each["busyMs"]) / 1000 for each in shown),
        )

    def channel_s(self, all_s: float) -> float:
        """Channels of each batch times the time until the next, over `all_s` and what came after
        it.
        """
        ends = [*self.starts_s[1:], max(all_s, self.starts_s[-1] + self.took_s[-1])]
        begins = [0.0, *self.starts_s[1:]]
        held = zip(self.channels, begins, ends, strict=True)
        return float(sum(count * max(0.0, end - begin) for count, begin, end in held))

    @property
    def changes(self) -> tuple[int, ...]:
        """The batches that had another number of channels than the one before."""
        return tuple(
            n for n, (before, after) in enumerate(pairwise(self.channels), 1) if before != after
        )


def _time_s(timestamp: str) -> float:
    return float(np.datetime64(timestamp.rstrip("Z")).astype("datetime64[ms]").astype(int)) / 1000
