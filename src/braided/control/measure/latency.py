"""The latency that rows had, as far as batches tell: from arrival to the end of the batch.

Rows of a batch came in while it was collected, the first when collecting began and the last when
the batch did. So the latencies of a batch lie evenly between how long it took and that plus how
long it was collected. A percentile is one over all rows of the last batches, slow ones included.
"""

from __future__ import annotations

from collections import deque

import numpy as np

__all__ = ["PERCENTILE", "Latency"]

PERCENTILE = 0.95
_SPAN_S = 60.0
_BATCHES = 256
_BATCHES_LEAST = 16


class Latency:
    """The last minute of one flow."""

    def __init__(self) -> None:
        self._batches: deque[tuple[float, float, float]] = deque(maxlen=_BATCHES)

    def add(self, rows: float, duration_s: float, collected_s: float) -> None:
        """One batch."""
        if rows <= 0:
            return
        self._batches.append((rows, duration_s, max(collected_s, 1e-6)))
        span_s = sum(each[2] for each in self._batches)
        while len(self._batches) > 1 and span_s - self._batches[0][2] >= _SPAN_S:
            span_s -= self._batches.popleft()[2]

    def p95_s(self) -> float | None:
        """What 95 of 100 rows had at most; None as long as too few batches can tell."""
        if len(self._batches) < _BATCHES_LEAST:
            return None
        rows, took, collected = np.array(self._batches).T
        # How many rows had at most some latency is a line with bends, where batches begin and end.
        bends = np.concatenate([took, took + collected])
        steeper = np.concatenate([rows / collected, -rows / collected])
        order = np.argsort(bends, kind="stable")
        bends, slopes = bends[order], np.cumsum(steeper[order])[:-1]
        within = np.concatenate([[0.0], np.cumsum(slopes * np.diff(bends))])
        wanted = PERCENTILE * float(rows.sum())
        last = int(np.searchsorted(within, wanted)) - 1
        return float(bends[last] + (wanted - within[last]) / slopes[last])
