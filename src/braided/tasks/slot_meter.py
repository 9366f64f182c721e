"""What each slot of a channel took of its task: rows and time.

The driver balances slots by these numbers, and takes as many channels as they ask for. So time that
a task spends on others, waiting for rows or for somebody to take its output, counts for no slot,
and all that it does for several slots at once, reading a chunk or writing the changelog, counts for
each of them by its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns, process_time_ns

import pyarrow as pa

from braided.spark.worker_process import acknowledge_at_once

__all__ = ["SlotMeter"]

_NO_SLOT = -1


class SlotMeter:
    """Measures one task. It is in one slot at a time, or in none."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        """Rows by slot; a slot that was touched without a row of its own has none."""
        self.busy_ns: dict[int, int] = {}
        self.waited_ns = 0
        """Time spent on others: rows that were not there yet, output nobody took yet."""
        self._started_ns = perf_counter_ns()
        self._cpu_started_ns = process_time_ns()
        self._slot = _NO_SLOT
        self._entered_ns = 0
        self._chunk: list[tuple[int, int]] = []

    def worked_ns(self) -> int:
        """Since the task began, without what it has waited."""
        return perf_counter_ns() - self._started_ns - self.waited_ns

    def cpu_ns(self) -> int:
        """The time since the task began in which it needed a core."""
        return process_time_ns() - self._cpu_started_ns

    def timed(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The chunks; to wait for one is no work."""
        while True:
            begun_ns = perf_counter_ns()
            acknowledge_at_once()
            chunk = next(chunks, None)
            self.waited_ns += perf_counter_ns() - begun_ns
            if chunk is None:
                return
            yield chunk

    def enter(self, slot: int) -> None:
        """From now on the task works for this slot."""
        self.leave()
        self._slot = slot
        self.rows.setdefault(slot, 0)

    def leave(self) -> None:
        """From now on the task works for no slot."""
        now_ns = self.worked_ns()
        if self._slot != _NO_SLOT:
            spent_ns = now_ns - self._entered_ns
            self.busy_ns[self._slot] = self.busy_ns.get(self._slot, 0) + spent_ns
        self._entered_ns = now_ns
        self._slot = _NO_SLOT

    def touch(self, slots: Iterable[int]) -> None:
        """Something was done in these slots, whether they have rows or not."""
        for slot in slots:
            self.rows.setdefault(slot, 0)

    def count(self, rows: Iterable[tuple[int, int]]) -> None:
        """Slots, each with a number of rows that have come for it, in one chunk."""
        self._chunk = list(rows)
        for slot, count in self._chunk:
            self.rows[slot] = self.rows.get(slot, 0) + count

    def charge(self, rows: Iterable[tuple[int, int]], spent_ns: int) -> None:
        """Divides time that was spent on several slots at once by the rows of each; where none has
        any, each gets as much.
        """
        shares = list(rows)
        if not any(count for _, count in shares):
            shares = [(slot, 1) for slot, _ in shares]
        per_row = spent_ns / max(1, sum(count for _, count in shares))
        for slot, count in shares:
            self.busy_ns[slot] = self.busy_ns.get(slot, 0) + int(per_row * count)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """What is done meanwhile is done for all slots of the chunk that is counted by then, and
        not for the one that the task is in.
        """
        slot = self._slot
        self.leave()
        begun_ns = self._entered_ns
        yield
        self.charge(self._chunk, self.worked_ns() - begun_ns)
        self._slot, self._entered_ns = slot, self.worked_ns()
