"""Whether a batch should end early, because one channel would hold up all the others.

While a batch runs its tasks tell how far they are. When most channels of an operator have ended,
the rows that are left and what a row has cost so far say how long the rest will take. Worth ending
is a batch whose rest takes as long again as the others took, and more than a batch costs in any
case: the rest then comes first in the next batch, by a table that was made for it, and the rows of
all other keys need not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["ChannelProgress", "CutReason", "reason_to_cut"]

_ENDED_SHARE = 0.5
"""Of the channels that must have ended: what the others are compared with."""
_TIMES_OTHERS = 1.0
"""The rest must take so many times what the channels that have ended took."""
_TIMES_OVERHEAD = 2.0
"""And so many times what a batch takes besides its tasks: that much ending it costs."""
_WORKED_TIMES_OVERHEAD = 3.0
"""Channels that are cut must have worked for as long: else they would mostly wait for batches."""


@dataclass(frozen=True)
class ChannelProgress:
    """A channel in a batch that runs: rows that are done, and seconds since it began."""

    rows: int
    seconds: float
    ended: bool


@dataclass(frozen=True)
class CutReason:
    """What would have been, had the batch gone on."""

    rest_s: float
    """What the rows that are left would have taken on their channels, at least."""
    others_s: float
    """What the channels that have ended took."""
    rows_left: int


def reason_to_cut(
    channels: Sequence[ChannelProgress],
    count: int,
    rows: Callable[[], int | None],
    overhead_s: float,
) -> CutReason | None:
    """Why to end a batch now; None to let it go on.

    `channels` are those of an operator that have told, of `count` that it has; `rows` is what they
    have to do in all, which is asked for only where the answer matters; `overhead_s` is what a
    batch takes besides its tasks.
    """
    ended = [channel for channel in channels if channel.ended]
    running = [channel for channel in channels if not channel.ended]
    if not running or not ended or len(channels) < count or len(ended) < _ENDED_SHARE * count:
        return None
    worked_s = min(channel.seconds for channel in running)
    if worked_s < _WORKED_TIMES_OVERHEAD * overhead_s:
        return None
    done, spent_s = sum(c.rows for c in running), sum(c.seconds for c in running)
    left = (rows() or 0) - sum(channel.rows for channel in channels)
    if not done or left <= 0:
        return None  # nothing is known of its rows or of what they cost, or they are done
    # If one of them has more of the rest than another, it takes longer than this.
    rest_s = left * (spent_s / done) / len(running)
    others_s = median(channel.seconds for channel in ended)
    if rest_s < max(_TIMES_OTHERS * others_s, _TIMES_OVERHEAD * overhead_s):
        return None
    return CutReason(rest_s, others_s, left)
