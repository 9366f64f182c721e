"""Rows with two keys that have to do with each other, for a while: locations and hashtags.

A row has a hashtag by its popularity, and the location is the hashtag's home or, as often as not,
any other. As the periods go by some hashtags find another home, some give way to new ones, and
popularity moves among those that are not for good. All is by a seed, so that a simulation and a
live benchmark can have the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from braided.sim.keys import zipf_shares

__all__ = ["CorrelatedPairs", "Numbers"]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CorrelatedPairs:
    """The shape of the rows; shares of hashtags are of their number, popular or not."""

    locations: int = 5_000
    hashtags: int = 200_000
    location_skew: float = 0.5
    hashtag_skew: float = 1.4
    hashtag_head: float = 30.0
    """How far popularity is flat before it falls: else one hashtag would be the work of a host."""
    affinity: float = 0.55
    """The share of rows whose location is the home of their hashtag."""
    stable: float = 0.55
    """The share of hashtags that stay what they are for good."""
    moving: float = 0.12
    """Of the others, the share that finds another home from one period to the next."""
    fresh: float = 0.12
    """Of the others, the share that gives way to a new one."""
    seed: int = 0

    def period(self, number: int, rows: int) -> tuple[Numbers, Numbers]:
        """Locations and hashtags of so many rows of a period, counted from 0."""
        homes, names = self._state(number)
        chance = np.random.default_rng((self.seed, 1, number))
        weight = (np.arange(self.hashtags) + self.hashtag_head) ** -self.hashtag_skew
        rank = chance.choice(self.hashtags, rows, p=weight / weight.sum())
        anywhere = chance.choice(
            self.locations, rows, p=zipf_shares(self.locations, self.location_skew)
        )
        is_home = chance.random(rows) < self.affinity
        return np.where(is_home, homes[rank], anywhere), names[rank]

    def _state(self, number: int) -> tuple[Numbers, Numbers]:
        """The home and the name of the hashtag of each rank in a period."""
        start = np.random.default_rng((self.seed, 0))
        shares = zipf_shares(self.locations, self.location_skew)
        homes = start.choice(self.locations, self.hashtags, p=shares)
        names = np.arange(self.hashtags, dtype=np.int64)
        passing = np.flatnonzero(start.random(self.hashtags) >= self.stable)
        for each in range(1, number + 1):
            change = np.random.default_rng((self.seed, 2, each))
            luck = change.random(passing.size)
            moves = passing[luck < self.moving]
            homes[moves] = change.choice(self.locations, moves.size, p=shares)
            gone = passing[luck > 1 - self.fresh]
            names[gone] = self.hashtags * each + gone
            homes[gone] = change.choice(self.locations, gone.size, p=shares)
        return homes, names
