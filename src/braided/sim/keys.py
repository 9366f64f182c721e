"""Key distributions: each key's share of the rows, as it changes over time.

A distribution gives the shares of *slots*, which is all that the simulator needs, and tells when it
changes next, so that nothing is computed between two changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from braided.control.routing.table import Loads

__all__ = [
    "Dominant",
    "Hotspot",
    "KeyDistribution",
    "Zipf",
    "hashed",
    "slot_of_keys",
    "zipf_shares",
]


class KeyDistribution(Protocol):
    """What share of the rows each slot has in the given version of the distribution."""

    def version(self, at_s: float) -> int: ...

    def shares(self, version: int, slots: int) -> Loads: ...

    def hottest(self, version: int) -> float:
        """The share of the hottest key: no channel does less than that."""
        ...

    def heavy(self, version: int) -> tuple[tuple[int, float], ...]:
        """The numbers of keys that tasks tell of, and their shares."""
        ...


def zipf_shares(keys: int, skew: float) -> Loads:
    """Shares of keys in order of rank: 1/rank^skew, summing to 1."""
    weight: Loads = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    return weight / float(weight.sum())


@lru_cache
def _highest_share(keys: int, skew: float) -> float:
    return float(zipf_shares(keys, skew)[0])


def slot_of_keys(keys: int, slots: int) -> npt.NDArray[np.int64]:
    """Where a hash puts each key; the same in every run."""
    return hashed(np.arange(keys, dtype=np.int64), slots)


def hashed(numbers: npt.NDArray[np.int64], slots: int) -> npt.NDArray[np.int64]:
    """The same for keys of these numbers."""
    with np.errstate(over="ignore"):
        z = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        z ^= z >> np.uint64(32)
    return (z % np.uint64(slots)).astype(np.int64)


@dataclass(frozen=True)
class Zipf:
    """Keys with zipf frequencies, which a random permutation reassigns ω times a minute."""

    keys: int = 10_000
    skew: float = 0.5
    shuffles_per_minute: float = 0.0
    seed: int = 0

    def version(self, at_s: float) -> int:
        return int(at_s * self.shuffles_per_minute / 60.0)

    def shares(self, version: int, slots: int) -> Loads:
        ranked = zipf_shares(self.keys, self.skew)
        order = np.random.default_rng((self.seed, version)).permutation(self.keys)
        shares = np.bincount(slot_of_keys(self.keys, slots), ranked[order], minlength=slots)
        return shares.astype(np.float64)

    def hottest(self, version: int) -> float:
        return _highest_share(self.keys, self.skew)

    def heavy(self, version: int) -> tuple[tuple[int, float], ...]:
        return ()


@dataclass(frozen=True)
class Hotspot:
    """Keys alike, but for a part of them that has a share of all rows and moves on now and then."""

    keys: int = 10_000
    hot_keys: int = 100
    share: float = 0.5
    every_s: float = 30.0

    def version(self, at_s: float) -> int:
        return int(at_s / self.every_s) if self.every_s > 0 else 0

    def shares(self, version: int, slots: int) -> Loads:
        weight = np.full(self.keys, (1 - self.share) / self.keys)
        hot = (np.arange(self.hot_keys) + version * self.hot_keys) % self.keys
        weight[hot] += self.share / self.hot_keys
        shares = np.bincount(slot_of_keys(self.keys, slots), weight, minlength=slots)
        return shares.astype(np.float64)

    def hottest(self, version: int) -> float:
        return (1 - self.share) / self.keys + self.share / self.hot_keys

    def heavy(self, version: int) -> tuple[tuple[int, float], ...]:
        return ()


@dataclass(frozen=True)
class Dominant:
    """Keys alike, but for one that has a share of all rows, and that tasks tell of."""

    keys: int = 10_000
    share: float = 0.5

    def version(self, at_s: float) -> int:
        return 0

    def shares(self, version: int, slots: int) -> Loads:
        weight = np.full(self.keys, (1 - self.share) / (self.keys - 1))
        weight[0] = self.share
        shares = np.bincount(slot_of_keys(self.keys, slots), weight, minlength=slots)
        return shares.astype(np.float64)

    def hottest(self, version: int) -> float:
        return self.share

    def heavy(self, version: int) -> tuple[tuple[int, float], ...]:
        return ((0, self.share),)
