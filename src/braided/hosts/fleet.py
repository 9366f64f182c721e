"""How many of Spark's executors a query holds: what its plan needs, what was asked for, what there
is. The three are kept apart, and channels are only placed on what there is.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from pyspark import SparkContext

from braided.control.routing.table import RoutingTable
from braided.errors import OptionError
from braided.spark.executors import Executor, SparkExecutors

__all__ = ["Fleet", "FleetBounds"]

log = logging.getLogger("braided")


@dataclass(frozen=True)
class FleetBounds:
    """Between how many executors a query may hold."""

    least: int
    most: int


_running: WeakKeyDictionary[SparkContext, Fleet] = WeakKeyDictionary()
"""There is one in an application: two would each give back what the other asks for."""


class Fleet:
    """The executors of a query that asks for them itself; one in an application."""

    def __init__(
        self, context: SparkContext, executors: SparkExecutors, bounds: FleetBounds, cores: int
    ) -> None:
        if context in _running:
            raise OptionError(
                "braided.cluster.maxExecutors is set for another query of this session that runs: "
                "each would give back the executors that the other asks for. Set it for one of "
                "them, or run them as two applications"
            )
        _running[context] = self
        self._context = context
        self._executors = executors
        self._bounds = bounds
        self._cores = cores
        """Tasks that one executor runs at a time."""
        self._fixed: tuple[int, int] | None = None
        """Executors that a migration left, and the channels of the plan then."""
        self._channels = 0
        self.planned = bounds.least
        self.requested: int | None = None
        self.observed = 0

    @property
    def most(self) -> int:
        """Executors that there may be."""
        return self._bounds.most

    @property
    def cores_most(self) -> int:
        """Tasks that can run at a time with as many executors as there may be."""
        return self._bounds.most * self._cores

    def saw(self, observed: Sequence[Executor]) -> None:
        self.observed = len(observed)
        if observed:
            self._cores = min(executor.cores for executor in observed)

    def aim(self, tables: Mapping[str, RoutingTable]) -> bool:
        """Plans for the channels of tables, and asks for what is missing; whether it is there.

        What is missing is asked for again and again: Spark may have been told of fewer since.
        """
        channels = self._channels = max(table.channels for table in tables.values())
        if self._fixed is None or self._fixed[1] != channels:
            self._fixed = None
            self.planned = self.executors_for(tables)
        is_there = self.observed >= self.planned
        if not is_there or self.requested is None or self.planned > self.requested:
            self._request(max(self.planned, self.observed))
        return is_there

    def fix(self, total: int) -> None:
        """So many executors were asked for by somebody else, and it stays at that until the plan
        has another number of channels.
        """
        self._fixed = (total, self._channels)
        self.planned = self.requested = total

    def executors_for(self, tables: Mapping[str, RoutingTable]) -> int:
        """How many the channels of tables need, within the bounds."""
        channels = max(table.channels for table in tables.values())
        if self._fixed is not None and self._fixed[1] == channels:
            return self._fixed[0]
        wanted = math.ceil(channels / self._cores)
        return min(max(wanted, self._bounds.least), self._bounds.most)

    def choose(
        self,
        hosts: Mapping[str, int],
        named: Collection[str],
        weights: Mapping[str, float],
        executors: int,
    ) -> dict[str, int]:
        """The hosts to use, if there are more than so many executors take: those that the tables
        name already, so that who was chosen stays chosen, and then those with most weight.
        """
        need = executors * self._cores
        chosen: dict[str, int] = {}
        for host in sorted(hosts, key=lambda h: (h not in named, -weights.get(h, 0.0), h)):
            if sum(chosen.values()) >= need:
                break
            chosen[host] = hosts[host]
        return chosen

    def release(self, observed: Sequence[Executor], in_use: Collection[str]) -> list[str]:
        """Gives back executors that are more than planned, on hosts that no channel is on, and
        those that have not come yet; the ids of those that go.
        """
        surplus = len(observed) - self.planned
        idle = [executor for executor in reversed(observed) if executor.host not in in_use]
        going = [executor.id for executor in idle[: max(0, surplus)]]
        total = max(self.planned, len(observed) - len(going))
        if not going and self.requested is not None and total < self.requested:
            self._request(total)
        if going:
            self._executors.release(going, total)
            self.requested = total
            self.observed -= len(going)
            log.info("executors %s are given back; %d stay", ", ".join(going), self.observed)
        return going

    def close(self) -> None:
        if _running.get(self._context) is self:
            del _running[self._context]

    def show(self) -> dict[str, int | None]:
        return {
            "planned": self.planned,
            "requested": self.requested,
            "observed": self.observed,
        }

    def _request(self, total: int) -> None:
        self._executors.request(total)
        self.requested = total
