"""Arrival processes: how many rows a source offers from one moment to another.

An arrival is a rate in rows per second as a function of time, and the number of rows between two
times, which is its integral. Chance comes from the simulator.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

__all__ = ["Arrivals", "Constant", "RecordedRates", "Sine", "Spike", "Steps"]


class Arrivals(Protocol):
    """Rows per second at a time, and rows between two times."""

    def rate(self, at_s: float) -> float: ...

    def rows(self, from_s: float, to_s: float) -> float: ...


@dataclass(frozen=True)
class Constant:
    rows_per_s: float

    def rate(self, at_s: float) -> float:
        return self.rows_per_s

    def rows(self, from_s: float, to_s: float) -> float:
        return self.rows_per_s * (to_s - from_s)


@dataclass(frozen=True)
class Sine:
    """mean + amplitude · sin(2πt/period)."""

    mean: float
    amplitude: float
    period_s: float

    def rate(self, at_s: float) -> float:
        return self.mean + self.amplitude * math.sin(2 * math.pi * at_s / self.period_s)

    def rows(self, from_s: float, to_s: float) -> float:
        turn = 2 * math.pi / self.period_s
        swing = (math.cos(turn * from_s) - math.cos(turn * to_s)) / turn
        return self.mean * (to_s - from_s) + self.amplitude * swing


@dataclass(frozen=True)
class Steps:
    """Rates one after the other, each for a while, and again from the beginning."""

    steps: tuple[tuple[float, float], ...]  # (seconds, rows per second)

    def rate(self, at_s: float) -> float:
        into = at_s % self._cycle_s
        return self.steps[min(bisect_right(self._ends, into), len(self.steps) - 1)][1]

    def rows(self, from_s: float, to_s: float) -> float:
        return self._until(to_s) - self._until(from_s)

    def changes(self, until_s: float) -> list[float]:
        """The times at which the rate changes, the start included."""
        times, at = [0.0], 0.0
        while True:
            for seconds, _ in self.steps:
                at += seconds
                if at >= until_s:
                    return times
                times.append(at)

    @property
    def _ends(self) -> list[float]:
        return list(accumulate(seconds for seconds, _ in self.steps))

    @property
    def _cycle_s(self) -> float:
        return self._ends[-1]

    def _until(self, at_s: float) -> float:
        cycles, into = divmod(at_s, self._cycle_s)
        rows = cycles * sum(seconds * rate for seconds, rate in self.steps)
        for seconds, rate in self.steps:
            part = min(into, seconds)
            rows += part * rate
            into -= part
        return rows


@dataclass(frozen=True)
class Spike:
    """A constant rate, and for a while another one."""

    base: float
    peak: float
    start_s: float
    length_s: float

    def rate(self, at_s: float) -> float:
        return self.peak if 0 <= at_s - self.start_s < self.length_s else self.base

    def rows(self, from_s: float, to_s: float) -> float:
        inside = min(to_s, self.start_s + self.length_s) - max(from_s, self.start_s)
        return self.base * (to_s - from_s) + (self.peak - self.base) * max(0.0, inside)


class RecordedRates:
    """Rates that were recorded: from each time until the next, the last one for ever."""

    def __init__(self, times_s: Sequence[float], rates: Sequence[float]) -> None:
        if len(times_s) != len(rates) or not times_s or list(times_s) != sorted(times_s):
            raise ValueError("a trace has a rate for each of its times, and the times ascend")
        self._times, self._rates = list(times_s), list(rates)

    def rate(self, at_s: float) -> float:
        return self._rates[max(0, bisect_right(self._times, at_s) - 1)]

    def rows(self, from_s: float, to_s: float) -> float:
        rows, at = 0.0, from_s
        while at < to_s:
            following = bisect_right(self._times, at)
            end = min(to_s, self._times[following] if following < len(self._times) else to_s)
            rows += (end - at) * self.rate(at)
            at = end
        return rows
