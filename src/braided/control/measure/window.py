"""The last values of one number that is measured once per batch, such as a throughput."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

__all__ = ["LENGTH_BATCHES", "Recent"]

LENGTH_BATCHES = 8
"""How many batches windows look back, where nobody says otherwise."""


class Recent:
    """The last values of one number, and a mean of them that single outliers do not move."""

    def __init__(self, length: int = LENGTH_BATCHES, values: Sequence[float] = ()) -> None:
        if length < 1:
            raise ValueError(f"a window is at least one value long, not {length}")
        self._values: deque[float] = deque(values, maxlen=length)

    def add(self, value: float) -> None:
        """Adds a value. Two that agree with each other and not with the rest replace the rest."""
        if len(self._values) >= 3:
            last = self._values[-1]
            rest = list(self._values)[:-1]
            if _is_far(value, rest) and _is_far(last, rest) and not _is_far(value, [last]):
                self._values.clear()
                self._values.append(last)
        self._values.append(value)

    def values(self) -> tuple[float, ...]:
        return tuple(self._values)

    def mean(self) -> float:
        """The mean of the values that are near the median; 0 before the first."""
        if not self._values:
            return 0.0
        middle, reach = _ordinary(self._values)
        near = [v for v in self._values if abs(v - middle) <= reach]
        return sum(near) / len(near) if near else middle


def _is_far(value: float, others: Sequence[float] | deque[float]) -> bool:
    """Whether a value is an outlier."""
    middle, reach = _ordinary(others)
    return abs(value - middle) > reach


def _ordinary(values: Sequence[float] | deque[float]) -> tuple[float, float]:
    """The middle of values, and how far from it is an outlier: beyond three spreads of them, and by
    a quarter.
    """
    middle = median(values)
    spread = median([abs(value - middle) for value in values])
    return middle, max(3 * 1.4826 * spread, 0.25 * abs(middle))
