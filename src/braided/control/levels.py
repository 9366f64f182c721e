"""Rapid scaling (P6): the numbers of channels that a step-by-step controller steps through.

1, 2, 3, 4, 6, 8, 11, 16, 23, 32, ...: N(L) = ⌊0.5 + 2^((L+1)/2)⌋. One level at a time reaches any
number in logarithmically many periods. The text of Gedik et al. has ⌈⌉, which does not give the
series it prints.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache

__all__ = ["level_of", "levels"]


@lru_cache(maxsize=64)
def levels(least: int, most: int) -> tuple[int, ...]:
    """The channels of each level from least to most, both included."""
    if not 1 <= least <= most:
        raise ValueError(f"levels go from at least 1 upwards, not from {least} to {most}")
    between = []
    level = 0
    while (channels := math.floor(0.5 + 2 ** (0.5 * (level + 1)))) < most:
        if channels > least:
            between.append(channels)
        level += 1
    return (least, *between, most) if most > least else (least,)


def level_of(channels: int, steps: tuple[int, ...]) -> int:
    """The level with so many channels, or the next one below."""
    return max(0, bisect_right(steps, channels) - 1)
