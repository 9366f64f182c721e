"""Which hosts there are, and which slots each has in its cache."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from braided.control.routing.host_choice import Residence
from braided.control.routing.table import Loads, RoutingTable, Slots
from braided.spark.executors import Executor, SparkExecutors, cores_by_host
from braided.store.history.manifest import View
from braided.tasks.reports import ChannelReport

__all__ = ["HostMap"]


_TRIES = 2


class HostMap:
    """Hosts as they are observed, and slots as reports say where they were.

    An executor is *fit* once tasks of ours have run there: it can run Braided, and is warm. One
    that takes the place of another, on the same host, has to become it anew.
    """

    def __init__(self, executors: SparkExecutors) -> None:
        self._executors = executors
        self._hosts_of_executors: dict[str, str] = {}
        self._observed: list[Executor] = []
        self._fit: set[str] = set()
        self._tries: dict[str, int] = {}
        self._numbers: dict[str, int] = {}  # of all hosts that were ever seen
        self._residence: dict[str, Slots] = {}
        self._bytes: dict[str, Loads] = {}

    # -- hosts -----------------------------------------------------------------------------

    def observe(self) -> list[Executor]:
        """Looks which executors there are."""
        observed = self._executors.observed()
        for executor in observed:
            self._hosts_of_executors[executor.id] = executor.host
        self._observed = observed
        return observed

    def look(self) -> list[Executor]:
        """Which executors there are, for whoever looks in another thread; `observe` is what the
        batches go by.
        """
        there = self._executors.observed()
        for executor in there:
            self._hosts_of_executors[executor.id] = executor.host
        return there

    def request(self, total: int) -> None:
        self._executors.request(total)

    def release(self, executors: Collection[str], total: int) -> None:
        self._executors.release(executors, total)

    def without_our_tasks(self, executors: Iterable[Executor]) -> list[Executor]:
        """Those that nothing of ours has run on yet."""
        return [executor for executor in executors if executor.id not in self._fit]

    @property
    def operators(self) -> list[str]:
        """Those whose slots it knows."""
        return list(self._bytes)

    def count_executors(self) -> int:
        """How many there are, for whoever waits in another thread."""
        return len(self._executors.observed())

    @property
    def cores(self) -> Mapping[str, int]:
        """How many tasks each host runs at a time, on executors that are there and fit."""
        return cores_by_host(each for each in self._observed if each.id in self._fit)

    @property
    def to_be_tried(self) -> list[Executor]:
        """Executors that are there, and have not run anything of ours yet."""
        return [
            executor
            for executor in self._observed
            if executor.id not in self._fit and self._tries.get(executor.id, 0) < _TRIES
        ]

    def count_try(self, executors: Iterable[str]) -> None:
        """Executors are looked at; who is not found fit then is looked at once more only."""
        for id in executors:
            self._tries[id] = self._tries.get(id, 0) + 1

    def found_fit(self, executors: Iterable[str]) -> None:
        self._fit.update(executors)

    def host_of(self, executor: str) -> str:
        """The host of an executor that is there or has been; "" if nobody knows."""
        return self._hosts_of_executors.get(executor, "")

    # -- slots -----------------------------------------------------------------------------

    def add_operator(self, name: str, view: View, table: RoutingTable) -> None:
        """An operator as its checkpoint has it: its slots are where they were last, and of one
        size, until reports say otherwise.
        """
        if name in self._bytes:
            return
        slots, version = table.slots.size, view.operators.get(name)
        self._bytes[name] = np.full(slots, 0.0 if version is None else version.bytes / slots)
        residence = np.full(slots, -1, dtype=np.int32)
        if version is not None and table.hosts:
            numbers = [self._number(host) if host else -1 for host in table.hosts]
            residence = np.array(numbers, dtype=np.int32)[table.slots]
        self._residence[name] = residence

    def knows(self, name: str) -> bool:
        """Whether a batch has begun since the start, so that an operator's slots are known."""
        return name in self._residence

    def note_reports(self, reports: Mapping[str, list[ChannelReport]]) -> None:
        """A batch is committed: what its channels opened is where they ran."""
        for name, channels in reports.items():
            for report in channels:
                host = self.host_of(report.executor)
                slots = [slot.slot for slot in report.slots]
                if slots:
                    self._bytes[name][slots] = [slot.bytes for slot in report.slots]
                    self._residence[name][slots] = self._number(host) if host else -1

    def brought(self, name: str, slots: Collection[int], host: str) -> None:
        """Slots have been fetched by a host."""
        self._residence[name][list(slots)] = self._number(host)

    def residence(self, name: str) -> Residence:
        # In this order: another thread may number a host, and then put slots there.
        of_slot = self._residence[name].copy()
        return Residence(tuple(self._numbers), of_slot)

    def state_bytes(self, name: str) -> Loads:
        return self._bytes[name]

    def _number(self, host: str) -> int:
        return self._numbers.setdefault(host, len(self._numbers))
