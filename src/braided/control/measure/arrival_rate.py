"""How many rows a second come in: calm as long as only chance speaks, quick when the load changes.

Who goes by the last batch alone follows every whim of the source: with noise of 30 % the channels
would change in every fourth batch. Who averages over many follows a surge too late. So batches are
averaged for as long as they agree with each other, and when the last ones do not, the average
begins anew with them. How much they have to differ depends on how noisy the source is, which is
measured by how much batches differ from the one before, and on how many of them agree:

    z = |mean of the last k - mean of those before| / (noise · √(1/k + 1/(n-k)))

in square roots of rates, in which noise is about as much upwards as it is downwards. Without
noise, the first batch of a surge is known for one; with 30 %, a load that doubles is after two or
three. A batch or two that have little are a pause of the source; less load lasts longer.

Rows come per time, not per batch. A batch without rows between two that have some, which Spark runs
where event time has moved on and no input is there, or for a timer, is time in which the rows of
the next one are collected. It is a *pause*, and nobody takes it for noise; the source has stopped
if it lasts for longer than rows were collected for so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median

__all__ = ["ArrivalRate"]

_TAILS = (1, 2, 3, 4, 6, 8, 12, 16)
"""How many of the last batches are held against those before."""
_FEWER = 4
"""So many batches have to agree that there is less, and two that there is nothing."""
_SURPRISE_ONE = 3.5
_SURPRISE = 4.0
"""How far off they have to be, in standard deviations: one batch, and several that agree."""
_AGREE = 0.75
"""The part of them that has to be off in the same way."""
_PAUSE = 1.5
"""How long batches without rows are a pause, in the usual time from rows to rows; one always is."""
_OFF = 1e-6
"""Of the mean of several: a batch that is off by less is not."""
_NOISE_LEAST = 0.015
_NOISE_ASSUMED = 0.15
"""Until there are batches to tell: it counts as much as `_ASSUMED` of them."""
_ASSUMED = 3
_CHANGES = 48
"""Differences from batch to batch that say how noisy the source is."""
_NORMAL = 0.6745 * math.sqrt(2)
"""The median difference of two values of a normal distribution, in standard deviations."""
_SPAN_S = 60.0
_BATCHES_LEAST = 8
_BATCHES_MOST = 128
"""A window is this long in time, and has so many batches at least and at most."""


@dataclass(frozen=True)
class ArrivalRate:
    """What is known of an operator's input: rows and seconds of the batches that agree."""

    batches: tuple[tuple[float, float], ...] = ()
    changes: tuple[float, ...] = ()
    pause: tuple[float, ...] = ()
    """Seconds of the batches since that had no rows; the next rows were collected in them, too."""

    def then(self, rows: float, seconds: float) -> ArrivalRate:
        """One more batch, collected in that time."""
        seconds = max(seconds, 1e-9)
        if rows > 0:
            return self._and(rows, sum(self.pause) + seconds)
        if self._goes_on(seconds):
            return replace(self, pause=(*self.pause, seconds))
        after = self
        for each in (*self.pause, seconds):
            after = after._and(0.0, each)
        return after

    def _goes_on(self, seconds: float) -> bool:
        """Whether the source will, as far as one can tell after a batch without rows."""
        if not self.batches or self.batches[-1][0] <= 0:
            return False
        usual = median(each for _, each in self.batches)
        return not self.pause or sum(self.pause) + seconds <= _PAUSE * usual

    def _and(self, rows: float, seconds: float) -> ArrivalRate:
        changes = self.changes
        if self.batches:
            before, now = _root(self.batches[-1]), _root((rows, seconds))
            change = 2 * abs(now - before) / max(now + before, 1e-9)
            changes = (*changes, change)[-_CHANGES:]
        batches = (*self.batches, (rows, seconds))[-_BATCHES_MOST:]
        begin = _begin(batches, _noise(changes, batches))
        batches = batches[begin:]
        spent_s, kept = 0.0, 0
        for _, of_batch_s in reversed(batches):
            spent_s += of_batch_s
            if spent_s > _SPAN_S and kept >= _BATCHES_LEAST:
                break
            kept += 1
        return ArrivalRate(batches[-kept:], changes)

    @property
    def pauses(self) -> bool:
        """Whether the last batch had no rows, as happens between two that have some."""
        return bool(self.pause)

    @property
    def collected_s(self) -> float:
        """In which time the rows of the last batch that had some were collected."""
        return self.batches[-1][1] if self.batches else 0.0

    @property
    def rows_per_s(self) -> float:
        seconds = sum(each for _, each in self.batches)
        return sum(rows for rows, _ in self.batches) / seconds if seconds > 0 else 0.0

    @property
    def last(self) -> float:
        """Of the last batch alone, or the last before the pause."""
        return self.batches[-1][0] / self.batches[-1][1] if self.batches else 0.0

    @property
    def error(self) -> float:
        """How far off the rate may be by chance: one standard deviation, as a share of it."""
        return 2 * self.noise / math.sqrt(max(1, len(self.batches)))

    @property
    def noise(self) -> float:
        """By how much the roots of rates differ at the same load, as a share of them."""
        return _noise(self.changes, self.batches)


def _root(batch: tuple[float, float]) -> float:
    rows, seconds = batch
    return math.sqrt(rows / seconds)


def _noise(changes: tuple[float, ...], batches: tuple[tuple[float, float], ...]) -> float:
    seen = [*changes, *[_NOISE_ASSUMED * _NORMAL] * _ASSUMED]
    mean_rows = sum(rows for rows, _ in batches) / max(1, len(batches))
    return max(median(seen) / _NORMAL, _NOISE_LEAST, 0.5 / math.sqrt(mean_rows + 1))


def _begin(batches: tuple[tuple[float, float], ...], noise: float) -> int:
    """Where those begin that agree with the last batch."""
    rates = [_root(batch) for batch in batches]
    total = math.fsum(rates)
    count, begin, most = len(rates), 0, 1.0
    tail = 0.0
    for k in range(1, min(_TAILS[-1], count - 1) + 1):
        tail += rates[-k]
        if k not in _TAILS:
            continue
        before = (total - tail) / (count - k)
        off = tail / k - before
        if not off:
            continue
        if off < 0 and (k == 1 or (k < _FEWER and tail > 0)):
            continue
        limit = _SURPRISE_ONE if k == 1 else _SURPRISE
        chance = max(before, 1e-9) * noise * math.sqrt(1 / k + 1 / (count - k))
        surprise = abs(off) / chance / limit
        # One of them that is far off is not several that agree.
        if surprise > most and sum((r - before) / off > _OFF for r in rates[-k:]) > _AGREE * k:
            begin, most = count - k, surprise
    return begin
