"""The most memory that driver, JVM and workers had while something ran, as Linux tells it.

Of a process, what counts is its anonymous memory: what it has allocated and can't give back. The
pages of the cache are a file's, shared by all workers, and the kernel takes them back when it needs
them; they are in what is resident, which is told beside it. The kernel keeps the highest resident
size by itself; anonymous memory is looked at a hundred times a second.

A process keeps what it has once had, for the next time. So whatever is measured gets workers that
have done nothing before.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import SparkContext

from braided.bench.process_tree import children, kill
from braided.spark.jvm import jvm_pid, live_heap_bytes

__all__ = ["Peaks", "measured_peaks"]

_LOOK_S = 0.01
_LIST_EVERY = 10
"""Looks at memory between two at which processes there are."""
_KIB_PER_MB = 1e6 / 1024


@dataclass
class Peaks:
    """In MB. Of several workers, the one that had most."""

    worker_mb: float = 0.0
    """Above what it was forked with."""
    shared_mb: float = 0.0
    """What workers are forked with, libraries mostly, which is there once for all of them."""
    worker_resident_mb: float = 0.0
    driver_mb: float = 0.0
    jvm_mb: float = 0.0
    jvm_live_mb: float = 0.0
    """What of the heap is in use after a collection; the JVM itself takes what it is allowed."""
    workers: int = 0

    def fields(self) -> dict[str, float]:
        return {name: round(value, 1) for name, value in vars(self).items()}


@dataclass
class _ProcessWatch:
    """Looks at the processes of one driver until it is told to stop."""

    driver: int
    jvm: int
    peaks_kib: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    resident_kib: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    daemons: set[int] = field(default_factory=set)
    workers: set[int] = field(default_factory=set)
    stopped: threading.Event = field(default_factory=threading.Event)

    def look_until_stopped(self) -> None:
        looks = 0
        while not self.stopped.wait(_LOOK_S):
            if looks % _LIST_EVERY == 0:
                self.find_workers()
            looks += 1
            self.look()
        self.find_workers()
        self.look()

    def find_workers(self) -> None:
        """The processes that PySpark's daemons have forked."""
        for process in children(self.jvm):
            if forked := children(process):
                self.daemons.add(process)
                self.workers.update(forked)

    def look(self) -> None:
        for pid in (self.driver, self.jvm, *self.daemons, *self.workers):
            status = _status_kib(pid)
            self.peaks_kib[pid] = max(self.peaks_kib[pid], status.get("RssAnon", 0))
            self.resident_kib[pid] = max(self.resident_kib[pid], status.get("VmHWM", 0))

    def peaks(self) -> Peaks:
        shared_kib = max((self.peaks_kib[pid] for pid in self.daemons), default=0)
        worker_kib = max((self.peaks_kib[pid] for pid in self.workers), default=shared_kib)
        resident_kib = max((self.resident_kib[pid] for pid in self.workers), default=0)
        return Peaks(
            worker_mb=max(0, worker_kib - shared_kib) / _KIB_PER_MB,
            shared_mb=shared_kib / _KIB_PER_MB,
            worker_resident_mb=resident_kib / _KIB_PER_MB,
            driver_mb=self.peaks_kib[self.driver] / _KIB_PER_MB,
            jvm_mb=self.peaks_kib[self.jvm] / _KIB_PER_MB,
            workers=len(self.workers),
        )


@contextmanager
def measured_peaks(context: SparkContext) -> Iterator[Peaks]:
    """Peaks of what runs inside, on workers that have done nothing before; filled in at the end.

    No task may be running when it begins: workers are ended, and Spark forks others.
    """
    _end_workers(context)
    watch = _ProcessWatch(os.getpid(), jvm_pid(context))
    thread = threading.Thread(target=watch.look_until_stopped, daemon=True)
    thread.start()
    peaks = Peaks()
    try:
        yield peaks
    finally:
        watch.stopped.set()
        thread.join()
    vars(peaks).update(vars(watch.peaks()))
    peaks.jvm_live_mb = live_heap_bytes(context) / 1e6


def _end_workers(context: SparkContext) -> None:
    watch = _ProcessWatch(os.getpid(), jvm_pid(context))
    watch.find_workers()
    kill(sorted(watch.workers))


def _status_kib(pid: int) -> dict[str, int]:
    """The sizes of a process; none if it has ended."""
    with suppress(OSError):
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
        return {
            name: int(value.split()[0])
            for name, _, value in (line.partition(":") for line in lines)
            if value.endswith(" kB")
        }
    return {}
