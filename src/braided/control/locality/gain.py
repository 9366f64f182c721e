"""Whether a table of keys pays: seconds saved until the next one, against seconds spent on moving.

Three terms, all in seconds:

    locality   rows that no longer cross the network, times what one costs, shared by the hosts,
               which send at the same time
    balance    what the busiest hosts have less to do; or more, and then it counts against it
    moving     bytes of state that another host has to read, and a little for every key

Which rows stay is told by held-out rows (`forecast.py`), for the table of now as for the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from braided.control.locality.forecast import Forecast
from braided.control.measure.view import OperatorView

__all__ = ["Gain", "RemotePrices", "weigh_gain"]


@dataclass(frozen=True)
class RemotePrices:
    """What a row costs that crosses the network, what moving a key costs, and for how long a table
    may be expected to do.
    """

    row_bytes: float = 256.0
    bytes_per_s: float = 100e6
    row_s: float = 1e-6  # to write and read it, whatever its size
    moved_bytes_per_s: float = 100e6
    key_s: float = 2e-5
    horizon_s: float = 60.0  # or until the next table may come, if that is longer
    least_points: float = 0.02  # of locality: fewer are what chance makes

    @property
    def remote_row_s(self) -> float:
        return self.row_bytes / self.bytes_per_s + self.row_s

    def moving_s(self, keys: int, state_bytes: float) -> float:
        """To move so many keys, of which so much has to be read by another host."""
        return state_bytes / self.moved_bytes_per_s + keys * self.key_s

    def least_rows_per_s(self, hosts: int) -> float:
        """With fewer a key is not worth its move, whoever it is brought together with."""
        return self.key_s * hosts / (self.remote_row_s * self.horizon_s)


@dataclass(frozen=True)
class Gain:
    """The terms, in seconds within the horizon."""

    locality_s: float
    balance_s: float
    moving_s: float
    points: float
    """Of locality, as a share of rows."""
    pays: bool
    reason: str

    @property
    def net_s(self) -> float:
        return self.locality_s + self.balance_s - self.moving_s


def weigh_gain(
    now: Forecast,
    after: Forecast,
    rows_per_s: float,
    hosts: int,
    views: Sequence[OperatorView],
    moved_keys: int,
    moved_bytes: float,
    prices: RemotePrices,
) -> Gain:
    """What `after` brings instead of `now`, where so many rows pass between operators."""
    points = after.closeness - now.closeness
    locality_s = points * rows_per_s * prices.remote_row_s / hosts * prices.horizon_s
    busy = sum(view.total_load / view.channels for view in views)
    balance_s = (now.imbalance - after.imbalance) * busy * prices.horizon_s
    moving_s = prices.moving_s(moved_keys, moved_bytes)
    net_s = locality_s + balance_s - moving_s
    if points < prices.least_points:
        why = f"the {max(points, 0.0) * 100:.1f} points that it would bring are what chance makes"
    elif net_s <= 0:
        why = f"in {prices.horizon_s:g} s that does not pay"
    else:
        why = ""
    words = (
        f"{after.locality:.0%} of rows would stay on their host instead of {now.locality:.0%}: "
        f"{locality_s:.2f} s saved, {_signed(balance_s)} by balance, {moving_s:.2f} s to move "
        f"{moved_keys:,} keys of {moved_bytes / 1e6:.1f} MB"
    )
    return Gain(
        locality_s, balance_s, moving_s, points, not why, f"{words}; {why}" if why else words
    )


def _signed(seconds: float) -> str:
    return f"{seconds:.2f} s saved" if seconds >= 0 else f"{-seconds:.2f} s lost"
