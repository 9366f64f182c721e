"""What moving costs, as it was measured: how fast state is read, and what a slot takes to open.

A batch in which a host opens slots that it did not have waits for their state. Who waited says how
many bytes and slots that was, and for how long:

    waited = bytes / bytes_per_s + slots * slot_s

The last waits are kept, and the rates follow for which they come nearest to it, counted by how many
times longer or shorter they took: one that takes seconds says no more than one that takes
milliseconds. What is assumed at first counts a little too, and decides what waits can't: where all
have the same bytes per slot, they do not say which of the two takes the time. A wait far from the
rest is most often somebody else's doing, a pause of the machine say, and counts as a little off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["CatchUp", "MovingCost", "MovingRates"]

_WAITS = 64
"""As many of the last ones count."""
_ASSUMED = 0.1
"""What the assumed rates are worth, in waits: they may well be wrong by a factor of ten."""
_OFF = 0.7
"""How far off a wait may be, as a logarithm, and still count in full: a factor of two."""
_ROUNDS = 30
_STEP_MAX = 1.0
_BYTES_PER_S = (1e4, 1e11)
_SLOT_S = (1e-6, 10.0)


class CatchUp(NamedTuple):
    """A wait for state: of so many bytes in so many slots."""

    bytes: float
    slots: int
    waited_s: float


@dataclass(frozen=True)
class MovingRates:
    """What moving costs."""

    bytes_per_s: float = 100e6
    slot_s: float = 0.0005

    def expected_s(self, bytes_read: float, slots: int) -> float:
        return bytes_read / self.bytes_per_s + slots * self.slot_s


class MovingCost:
    """Learns the rates of one query."""

    def __init__(self, assumed: MovingRates | None = None) -> None:
        self._assumed = self._rates = assumed or MovingRates()
        self._waits: deque[CatchUp] = deque(maxlen=_WAITS)

    @property
    def measured(self) -> bool:
        """Whether there is anything but what was assumed."""
        return bool(self._waits)

    def add(self, waits: Iterable[CatchUp]) -> None:
        """Waits of one batch, of each host or channel on its own."""
        usable = [w for w in waits if w.slots > 0 and w.bytes >= 0 and w.waited_s >= 0]
        if usable:
            self._waits.extend(usable)
            self._rates = _fit(self._rates, self._assumed, self._waits)

    def rates(self) -> MovingRates:
        """What moving costs by all that is known."""
        return self._rates


def _fit(rates: MovingRates, assumed: MovingRates, waits: Iterable[CatchUp]) -> MovingRates:
    """The rates for which the logarithms of waits are nearest: Gauss and Newton, from the last
    rates on, where what is far off weighs less.
    """
    size, slots, waited = np.array(list(waits), dtype=np.float64).T
    waited = np.log(np.maximum(waited, 1e-6))
    first = _logarithms(assumed)
    at = _logarithms(rates)
    for _ in range(_ROUNDS):
        parts = np.stack([size * np.exp(at[0]), slots * np.exp(at[1])], axis=1)
        expected = parts.sum(axis=1)
        off = waited - np.log(expected)
        slope = parts / expected[:, None]
        weight = 1 / np.maximum(1.0, np.abs(off) / _OFF)
        matrix = slope.T @ (weight[:, None] * slope) + _ASSUMED * np.eye(2)
        target = slope.T @ (weight * off) + _ASSUMED * (first - at)
        step = np.clip(np.linalg.solve(matrix, target), -_STEP_MAX, _STEP_MAX)
        at = np.clip(at + step, _LEAST, _MOST)
        if np.abs(step).max() < 1e-3:
            break
    return MovingRates(bytes_per_s=float(np.exp(-at[0])), slot_s=float(np.exp(at[1])))


def _logarithms(rates: MovingRates) -> npt.NDArray[np.float64]:
    """Of the seconds that a byte and a slot take."""
    seconds = np.log([1 / rates.bytes_per_s, max(rates.slot_s, _SLOT_S[0])])
    return np.clip(seconds, _LEAST, _MOST)


_LEAST = np.log([1 / _BYTES_PER_S[1], _SLOT_S[0]])
_MOST = np.log([1 / _BYTES_PER_S[0], _SLOT_S[1]])
