"""Says so, once, where an operator has more channels than Spark runs tasks at a time.

They come in waves then: two waves take longer than one of fuller channels, and whoever asked for
them wonders why nothing is faster. How many tasks run at a time is known from the start where all
is one machine, and on a cluster when executors have been seen.
"""

from __future__ import annotations

import logging

__all__ = ["TaskWaves", "warn_of_bound"]

log = logging.getLogger("braided")


class TaskWaves:
    """Looks at the channels of batch after batch."""

    def __init__(self, allowed: int) -> None:
        """`allowed`: the most channels that a policy may take, where it was not known at the start
        whether so many can run; 0 if there is nothing to say of them.
        """
        self._allowed = allowed
        self._is_told = False

    def see(self, channels: int, cores: int | None) -> None:
        """The most channels that an operator has, and how many tasks run at a time if that is
        known.
        """
        if self._is_told or cores is None or max(channels, self._allowed) <= cores:
            return
        self._is_told = True
        if channels > cores:
            log.warning(
                "an operator has %d channels, but Spark runs %d tasks at a time: the others wait "
                "for their turn, and nothing is sooner done than with %d channels. For more, give "
                "Spark more task slots (local[%d], or more executors)",
                channels,
                cores,
                cores,
                channels,
            )
            return
        warn_of_bound(self._allowed, cores)


def warn_of_bound(allowed: int, cores: int) -> None:
    """For a policy that may take more channels than can run."""
    log.warning(
        "up to %d channels are allowed, but Spark runs %d tasks at a time: no more channels "
        "than that are taken, since others would wait for their turn. For more, give Spark "
        "more task slots (local[%d], or more executors)",
        allowed,
        cores,
        allowed,
    )
