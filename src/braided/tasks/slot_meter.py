"""What each slot of a channel took of its task: rows and time.

The driver balances slots by these numbers, and takes as many channels as they ask for. So time that
a task spends on others, waiting for rows or for somebody to take its output, counts for no slot,
and all that it does for several slots at once, reading a chunk, encoding output or writing the
changelog, counts for each of them by its rows.

How much of a core it needs is another question than how much it got: where others keep the cores
busy, who computes all the time gets a third of one, and looks as if it waited for something else.
The kernel knows for how long a thread could have run and had no core, and that is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns, process_time_ns

import pyarrow as pa

from braided.spark.worker_process import acknowledge_at_once

__all__ = ["SlotMeter"]

_NO_SLOT = -1
_SCHEDSTAT = "/proc/thread-self/schedstat"


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
        self._queued_started_ns = _queued_ns()
        self._slot = _NO_SLOT
        self._entered_ns = 0
        self._chunk: list[tuple[int, int]] = []
        self._is_waiting = False
        self._ahead_ns = 0

    def worked_ns(self) -> int:
        """Since the task began, without what it has waited."""
        return perf_counter_ns() - self._started_ns - self.waited_ns

    def cpu_ns(self) -> int:
        """The part of its work in which it needs a core, as time of what it has worked.

        That is the time it had one over the time the work would have taken if it had never had to
        queue for one. Had the queue been added to the time instead, a task that sleeps would need
        half a core on a busy machine, because it queues whenever it wakes.
        """
        worked_ns, used_ns = self.worked_ns(), process_time_ns() - self._cpu_started_ns
        queued_ns = max(0, _queued_ns() - self._queued_started_ns)
        alone_ns = max(worked_ns - queued_ns, used_ns, 1)
        return worked_ns * used_ns // alone_ns

    def timed(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The chunks; to wait for one is no work."""
        while True:
            begun_ns = perf_counter_ns()
            acknowledge_at_once()
            self._is_waiting = True
            chunk = next(chunks, None)
            self._is_waiting = False
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
        if self._ahead_ns:
            ahead_ns, self._ahead_ns = self._ahead_ns, 0
            self.charge(self._chunk, ahead_ns)

    def charge(self, rows: Iterable[tuple[int, int]], spent_ns: int) -> None:
        """Divides time that was spent on several slots at once by the rows of each. One that has
        none gets as much as for a row: something was done there, if only timers fired.
        """
        shares = [(slot, max(1, count)) for slot, count in rows]
        per_row = spent_ns / max(1, sum(count for _, count in shares))
        for slot, count in shares:
            self.busy_ns[slot] = self.busy_ns.get(slot, 0) + int(per_row * count)

    @contextmanager
    def sharing(self, among: Iterable[tuple[int, int]] | None = None) -> Iterator[None]:
        """What is done meanwhile is done for these slots, by their numbers, or else for all of the
        chunk that is counted by then, and not for the one that the task is in.
        """
        slot = self._slot
        self.leave()
        begun_ns = self._entered_ns
        yield
        self.charge(self._chunk if among is None else among, self.worked_ns() - begun_ns)
        self._slot, self._entered_ns = slot, self.worked_ns()

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """What is done for rows before they are counted is work for the slots of the chunk that is
        counted next. Where `timed` waits for that chunk meanwhile, this is no waiting.
        """
        begun_ns = perf_counter_ns()
        yield
        spent_ns = perf_counter_ns() - begun_ns
        self._ahead_ns += spent_ns
        if self._is_waiting:
            self.waited_ns -= spent_ns


def _queued_ns() -> int:
    """How long this thread has been ready to run and has had no core; 0 where nobody counts that.

    About ten microseconds, so it is asked when a task begins and when it ends.
    """
    try:
        file = os.open(_SCHEDSTAT, os.O_RDONLY)
    except OSError:
        return 0
    try:
        # The time it ran, the time it was in the queue, and how often it ran.
        return int(os.read(file, 64).split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    finally:
        os.close(file)
