"""What Spark calls for a channel, whatever its kind, and what it expects of that kind's run."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from time import perf_counter_ns
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from braided import failpoints
from braided.errors import BraidedError
from braided.spark.worker_process import EXECUTOR_PROPERTY, freeze_heap
from braided.tasks.channel import Channel
from braided.tasks.failure import to_text
from braided.tasks.reports import ChannelReport, ReportBox
from braided.tasks.spec import BATCH_PROPERTY, BatchSpec

__all__ = ["ChannelTask", "TaskRun", "run_channel"]


class TaskRun(Protocol):
    """A channel of some kind of step in one batch: what each kind has one of."""

    @property
    def channel(self) -> Channel: ...

    def process(self, chunks: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, None]:
        """Rows in, output out."""

    def abandon(self) -> None:
        """The task has failed, or nobody wants its output: closes what it has opened."""

    def finish(self) -> ChannelReport:
        """Writes what changed, durably, and says so."""


def run_channel(
    run: TaskRun, chunks: Iterator[pa.RecordBatch]
) -> Generator[pa.RecordBatch, None, ChannelReport]:
    """The run's output, and in the end its report. Whatever ends it before, nothing stays open."""
    meter, output = run.channel.meter, run.process(chunks)
    try:
        for chunk in output:
            begun_ns = perf_counter_ns()
            yield chunk
            meter.waited_ns += perf_counter_ns() - begun_ns
        return run.finish()
    except BaseException:
        try:
            output.close()  # a hook that waits in the middle of its output comes to its end
        finally:
            run.abandon()
        raise


class ChannelTask:
    """What `mapInArrow` calls in every partition: a channel in a task of Spark's."""

    def __init__(self, spec: Any, reports: Accumulator[list[bytes]]) -> None:
        self.spec = spec
        self._reports = reports

    def begin(self, batch: BatchSpec, number: int) -> TaskRun:
        raise NotImplementedError

    def __call__(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The channel's output, and at the end its report."""
        context = TaskContext.get()
        assert context is not None
        freeze_heap()
        batch = BatchSpec.decode(context.getLocalProperty(BATCH_PROPERTY) or "")
        failpoints.arm(batch.failpoint)
        try:
            run = self.begin(batch, context.partitionId())
            report = yield from run_channel(run, chunks)
        except BraidedError as error:
            raise RuntimeError(to_text(error)) from None
        executor = context.getLocalProperty(EXECUTOR_PROPERTY) or ""
        report = msgspec.structs.replace(report, executor=executor)
        self._reports.add([ReportBox.encode(batch.token, report)])
