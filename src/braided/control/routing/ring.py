"""Consistent hashing: slots and channels on a ring, a slot belongs to the next channel along it.

Gedik et al. 6.2. Every channel has many points on the ring. A channel that comes takes slots from
all others; one that goes leaves its slots to all others; no slot moves between two channels that
stay. The points come from a fixed mixing function, so that the ring is the same in every process.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from braided.control.routing.table import Slots

__all__ = ["POINTS", "ring"]

POINTS = 128
"""Per channel. The loads of channels spread by about one part in the square root of this."""

_SLOTS, _CHANNELS = 0x5107, 0xC4A77E1


@lru_cache(maxsize=16)
def ring(slots: int, channels: int, points: int = POINTS) -> Slots:
    """The channel of each slot; the array is shared and read-only."""
    if channels < 1:
        raise ValueError(f"an operator needs at least one channel, not {channels}")
    position = _mix(np.arange(channels * points, dtype=np.uint64), _CHANNELS)
    owner = np.repeat(np.arange(channels, dtype=np.int32), points)
    # Two points at one position, however unlikely: the lower channel has it, and always does.
    order = np.lexsort((owner, position))
    along = np.searchsorted(position[order], _mix(np.arange(slots, dtype=np.uint64), _SLOTS))
    owners: Slots = owner[order][along % order.size]
    owners.setflags(write=False)
    return owners


def _mix(numbers: npt.NDArray[np.uint64], salt: int) -> npt.NDArray[np.uint64]:
    """Positions all over the ring, by the finaliser of splitmix64."""
    with np.errstate(over="ignore"):
        z = (numbers + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
