"""What all kinds of tasks have in common: a channel's state, its clock, its report.

A task is a pure function of its slots' state at the version before and its rows. At the end it
writes one changelog and reports; nothing it writes counts until the manifest names it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from braided import failpoints
from braided.errors import BraidedError
from braided.spark.worker_process import acknowledge_at_once, settle
from braided.store.durable.files import Files
from braided.store.history.manifest import CarryFile, OperatorView
from braided.store.history.manifest_log import Manifests
from braided.store.slots.channel_state import ChannelState
from braided.store.slots.lmdb_cache import Cache, host_directory
from braided.tasks.failure import to_text
from braided.tasks.reports import ChannelReport, KeyRows, ReportBox, SlotReport
from braided.tasks.spec import BATCH_PROPERTY, BatchSpec, ChannelSpec

__all__ = ["Channel", "ChannelTask"]


class Channel:
    """One channel of an operator in one batch. It knows nothing of Spark: Arrow in, Arrow out."""

    def __init__(self, spec: ChannelSpec, name: str, batch: BatchSpec, channel: int) -> None:
        self.name = name
        self.batch = batch
        self.channel = channel
        self.files = Files(spec.root)
        self.state = self._open(spec)
        self.attempt = f"{batch.batch}-{channel}-{uuid.uuid4().hex[:12]}"
        self.started_ns = perf_counter_ns()
        self.waited_ns = 0
        """Time spent on others: rows that were not there yet, output nobody took yet."""
        # measurements
        self.rows: dict[int, int] = {}
        self.busy_ns: dict[int, int] = {}
        self.rows_in = self.rows_out = self.keys_touched = 0
        self.digest = hashlib.blake2b(digest_size=16) if spec.keep_order else None

    def _open(self, spec: ChannelSpec) -> ChannelState:
        """The slots at the version before."""
        view = Manifests(self.files).view_at(self.batch.batch - 1, spec.flow)
        known = view.operators.get(self.name)
        if known is None:
            runs = self.batch.initial.get(self.name, ())
            known = OperatorView.empty(spec.meta).starting_with(runs)
        cache = Cache(host_directory(Path(spec.cache), spec.flow)) if spec.cache else None
        return ChannelState(self.files, cache, self.name, known, spec.limits)

    def process(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def abandon(self) -> None:
        """The task has failed, or nobody wants its output."""

    def finish(self) -> ChannelReport:
        """Writes what changed, durably, and says so."""
        return self.report()

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

    def note(self, columns: Iterable[pa.Array]) -> None:
        """Output that a later operator reads through a shuffle, which Spark may run again: whether
        a second run gave the same rows must be seen.
        """
        assert self.digest is not None
        for column in columns:
            for buffer in column.buffers():
                if buffer is not None:
                    self.digest.update(buffer)

    def report(
        self,
        carry: Callable[[], CarryFile | None] = lambda: None,
        heavy: tuple[KeyRows, ...] = (),
    ) -> ChannelReport:
        """`carry` writes what is left for the next batch, after the state."""
        changes = self.state.finish(f"state/{self.name}/{self.attempt}")
        carried = carry()
        slots = tuple(
            SlotReport(
                slot=slot.slot,
                rows=self.rows.get(slot.slot, 0),
                busy_ns=self.busy_ns.get(slot.slot, 0),
                keys=slot.keys_added,
                bytes=slot.bytes_added,
                due_ms=slot.due_ms,
                keys_held=slot.keys,
                bytes_held=slot.bytes,
            )
            for slot in changes.slots
        )
        return ChannelReport(
            operator=self.name,
            channel=self.channel,
            attempt=self.attempt,
            log=changes.log,
            snap=changes.snap,
            carry=carried,
            slots=slots,
            rows_in=self.rows_in,
            rows_out=self.rows_out,
            keys_touched=self.keys_touched,
            busy_ns=perf_counter_ns() - self.started_ns - self.waited_ns,
            output_digest="" if self.digest is None else self.digest.hexdigest(),
            slots_opened=changes.opened,
            cache_hits=changes.hits,
            rolled_back=changes.rolled_back,
            caught_up=changes.caught_up,
            rebuilt=changes.rebuilt,
            bytes_caught_up=changes.bytes_caught_up,
            cache_errors=changes.cache_errors,
            heavy=heavy,
        )


class ChannelTask:
    """What `mapInArrow` calls in every partition: a channel in a task of Spark's."""

    def __init__(self, spec: Any, reports: Accumulator[list[bytes]]) -> None:
        self.spec = spec
        self._reports = reports

    def begin(self, batch: BatchSpec, channel: int) -> Channel:
        raise NotImplementedError

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The channel's output, and at the end its report."""
        context = TaskContext.get()
        assert context is not None
        settle()
        batch = BatchSpec.decode(context.getLocalProperty(BATCH_PROPERTY) or "")
        failpoints.arm(batch.failpoint)
        try:
            run = self.begin(batch, context.partitionId())
            try:
                for chunk in run.process(chunks):
                    begun_ns = perf_counter_ns()
                    yield chunk
                    run.waited_ns += perf_counter_ns() - begun_ns
            except BaseException:
                run.abandon()
                raise
            report = run.finish()
        except BraidedError as error:
            raise RuntimeError(to_text(error)) from None
        self._reports.add([ReportBox.encode(batch.token, report)])
