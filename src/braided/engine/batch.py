"""One micro-batch, top to bottom: admit, route, process, commit, publish, control.

`Engine.run` is what Spark calls for every batch. Everything before `commit` can happen any number of times
without anybody seeing it; everything after it is finished by the next start if it is cut short.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from braided import failpoints
from braided.api.operator import state_codec
from braided.control.measure import SlotLoads
from braided.control.table import RoutingTable, moves
from braided.engine import checkpoint
from braided.engine.carry import read_carry
from braided.engine.checkpoint import BatchTimes, SparkLog
from braided.engine.commands import Commands
from braided.engine.commit import Outcome, manifest_of
from braided.engine.failure import from_worker, is_interrupt, is_lost_worker
from braided.engine.flow import Flow, OperatorStep
from braided.engine.gate import Gate, Stopped
from braided.engine.program import PackedProgram, Program
from braided.engine.progress import ProgressLog, Steps, section
from braided.engine.reports import ChannelReport, ReportBox
from braided.engine.route import Route, admit, order_columns, sequence
from braided.engine.sinks import Sink
from braided.engine.task import ChannelTask, TaskSpec
from braided.engine.tick import Bell
from braided.errors import (
    BraidedError,
    ChannelMissingError,
    CheckpointMismatchError,
    FencedError,
    NondeterministicBatchError,
)
from braided.options import Options
from braided.state.cache import host_directory
from braided.state.gc import Collector
from braided.state.lease import Lease
from braided.state.manifest import OperatorMeta, Prepared, View
from braided.state.manifests import Manifests
from braided.state.slots import Limits

__all__ = ["Engine"]

TRIES = 3
"""How often a batch is run when workers die or attempts disagree."""
CHUNK_ROWS = 32_768
CHUNK_BYTES = 32 << 20
"""The largest Arrow chunk that Spark hands to a task."""

log = logging.getLogger("braided")


@dataclass(frozen=True)
class _Stage:
    """An operator with all that does not change between batches."""

    step: OperatorStep
    meta: OperatorMeta
    route: Route
    program: PackedProgram
    order: int
    """Order columns of its input."""
    output: StructType
    tagged_output: StructType


class Engine:
    """Runs the batches of one query."""

    def __init__(self, flow: Flow, sink: Sink, location: str, options: Options, spark: SparkSession) -> None:
        self.flow = flow
        self.options = options
        self.location = location
        self.gate = Gate()
        self.bell = Bell()
        self.progress = ProgressLog()
        self.error: BraidedError | None = None
        self.is_active: Callable[[], bool] = lambda: True
        self._sink = sink
        self._spark = spark
        self._log = SparkLog(Path(location))
        self._files = checkpoint.braided_files(Path(location))
        self._manifests = Manifests(self._files)
        self._lease = Lease.acquire(self._files, f"query on {location}")
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        started = checkpoint.open_view(self._manifests, self._log, self.location)
        self._flow_id = started.flow
        self.view = started.view
        self._late_watermark_ms = 0
        if not started.fresh:
            self._late_watermark_ms = self._manifests.read(self.view.batch).watermark_ms
        self._sequence = sequence(self.flow.source.schema, self.options.order_by)
        self._stages = self._build_stages()
        self.tables: dict[str, RoutingTable] = {}
        for stage in self._stages:
            known = self.view.operators.get(stage.step.name)
            self.tables[stage.step.name] = (
                RoutingTable.initial(stage.meta.slots, min(self.options.channels, stage.meta.slots))
                if known is None
                else RoutingTable(known.epoch, known.channels, known.table)
            )
        self.commands = Commands(self.tables, self.bell)
        self._loads = {s.step.name: SlotLoads(s.meta.slots) for s in self._stages}
        self._box = ReportBox(self._spark.sparkContext)
        self._cache = host_directory(
            Path(self.options.cache_dir or self._spark.conf.get("spark.local.dir", "/tmp")),
            self._flow_id,
        )
        self._limits = Limits(
            snapshot_min_bytes=self.options.snapshot_min_bytes,
            snapshot_factor=self.options.snapshot_factor,
            snapshots_per_task=self.options.snapshot_per_task,
        )
        self._collector = Collector(self._files, self._manifests, self.options.retained_manifests)
        self._collector.collect_orphans()
        self._sink.open(self._spark, self._files, started.fresh)
        self._configured = False
        self._ring(rows=0)

    def _build_stages(self) -> tuple[_Stage, ...]:
        metas = {
            step.name: OperatorMeta(
                ordinal=0,
                slots=self.options.slots,
                key=step.key_schema.simpleString(),
                state=state_codec(step.operator).describe(),
                codec="msgpack-1",
            )
            for step in self.flow.steps
        }
        asked = self.options.slots if "slots" in self.options.given else None
        fitted = checkpoint.fit(self.view, metas, asked)
        stages = []
        order = 1 + len(self._sequence)
        for step in self.flow.steps:
            program = Program(
                name=step.name,
                operator=step.operator,
                time_mode=step.time_mode,
                input=step.input,
                key=step.key_schema,
                key_positions=tuple(step.keys.positions(step.input.names)),
                output=step.output,
            )
            tags = [StructField(name, LongType()) for name in order_columns(order + 1)]
            stages.append(
                _Stage(
                    step=step,
                    meta=fitted[step.name],
                    route=Route(step.keys, fitted[step.name].slots),
                    program=program.pack(),
                    order=order,
                    output=step.output,
                    tagged_output=StructType([*tags, *step.output.fields]),
                )
            )
            order += 1
        return tuple(stages)

    def close(self) -> None:
        """Lets go of the checkpoint. Safe to call again."""
        self._lease.release()
        self.bell.close()

    # -- what Spark calls ------------------------------------------------------------------

    def run(self, df: DataFrame, batch: int) -> None:
        """One batch. Returns only when it is committed and published."""
        with self.gate.batch(self.is_active):
            try:
                self._run(df, batch)
            except BaseException as error:
                raise self._explained(error) from None

    def _explained(self, error: BaseException) -> BaseException:
        """The error as Spark should get it: short, typed, or the words for an interrupt."""
        if self.gate.stopping or is_interrupt(error) or not self.is_active():
            return Stopped()
        found = error if isinstance(error, BraidedError) else from_worker(error)
        if found is not None:
            self.error = found
        self.close()
        return found or error

    def _run(self, df: DataFrame, batch: int) -> None:
        self._configure(df.sparkSession)
        if batch == self.view.batch:
            self._redelivered(df, batch)
            return
        if batch != self.view.batch + 1:
            raise CheckpointMismatchError(
                f"Spark runs batch {batch} of {self.location}, but the newest manifest is of batch "
                f"{self.view.batch}: the checkpoint was changed while the query ran"
            )
        steps = Steps()
        self.bell.answer()
        tables = self.commands.take(self._load_of)
        with steps.step("admit"):
            times = self._log.times(batch)
        outcome = self._process(df, batch, times, tables, steps)
        with steps.step("commit"):
            self._commit(outcome)
        with steps.step("publish"):
            failpoints.reach("after-manifest")
            self._publish(df.sparkSession, batch, outcome.outputs)
        with steps.step("control"):
            content = self._control(outcome, steps)
        self.progress.add(batch, content)
        failpoints.reach("after-publish")

    def _redelivered(self, df: DataFrame, batch: int) -> None:
        """A batch that a manifest has made true already: publish what it names."""
        if self.flow.late is not None:
            # Spark takes the watermark from the rows it sees go by.
            df.write.format("noop").mode("overwrite").save()
        manifest = self._manifests.read(batch)
        self._publish(df.sparkSession, batch, manifest.outputs)
        self._ring(rows=1)
        self.progress.add(batch, {"batchId": batch, "redelivered": True, "operators": {}})

    # -- process ---------------------------------------------------------------------------

    def _process(
        self,
        df: DataFrame,
        batch: int,
        times: BatchTimes,
        tables: Mapping[str, RoutingTable],
        steps: Steps,
    ) -> Outcome:
        cut = self.commands.cut()
        channels = {name: table.channels for name, table in tables.items()}
        for attempt in range(1, TRIES + 1):
            token = uuid.uuid4().hex[:12]
            try:
                with steps.step("route"):
                    failpoints.reach("before-routing")
                    plan = self._plan(df, batch, times, tables, token, cut)
                with steps.step("process"):
                    df.sparkSession.sparkContext.setJobDescription(f"braided batch {batch}")
                    entries = self._sink.prepare(plan, f"{batch}-{token}")
                reports = self._box.take(token, channels)
                break
            except (NondeterministicBatchError, ChannelMissingError) as error:
                if attempt == TRIES:
                    raise
                log.warning("batch %d runs again: %s", batch, error)
            except Exception as error:
                lost = is_lost_worker(error) and from_worker(error) is None
                if attempt == TRIES or not lost or self.gate.stopping:
                    raise
                log.warning("batch %d runs again: a worker process was lost", batch)
        return Outcome(
            batch=batch,
            batch_time_ms=times.batch_time_ms,
            watermark_ms=times.watermark_ms,
            metas={stage.step.name: stage.meta for stage in self._stages},
            tables=tables,
            reports=reports,
            outputs=(Prepared("out", entries),),
        )

    def _plan(
        self,
        df: DataFrame,
        batch: int,
        times: BatchTimes,
        tables: Mapping[str, RoutingTable],
        token: str,
        cut: int | None,
    ) -> DataFrame:
        """The whole batch as one lazy DataFrame: the output rows."""
        ordered = self.options.order_preserving
        if self.flow.late is not None and self._late_watermark_ms > 0:
            df = df.filter(F.expr(self.flow.late(self._late_watermark_ms)))
        frame = admit(df, batch, self._sequence)
        order = 0
        for stage in self._stages:
            name = stage.step.name
            carried = [file for file in self.view.carry if file.operator == name]
            if carried:
                rest = read_carry(df.sparkSession, self._files.root, carried, frame.schema)
                frame = rest.union(frame)
            tagged = ordered or cut is not None or stage is not self._stages[-1]
            frame = stage.route.apply(frame, tables[name], stage.order, tagged)
            spec = TaskSpec(
                program=stage.program,
                meta=stage.meta,
                token=token,
                batch=batch,
                flow=self._flow_id,
                root=self._files.root,
                cache=str(self._cache),
                limits=self._limits,
                batch_time_ms=times.batch_time_ms,
                watermark_ms=times.watermark_ms,
                due=self._due(stage, tables[name], times),
                order=stage.order,
                keep_order=tagged,
                cut=cut,
            )
            task = ChannelTask(spec, self._box.accumulator)
            frame = frame.mapInArrow(task, stage.tagged_output if tagged else stage.output)
            order = stage.order + 1 if tagged else 0
            for step in stage.step.after:
                frame = step.apply_ordered(frame, order) if order else step.apply(frame)
        if ordered:
            frame = frame.repartition(1).sortWithinPartitions(*order_columns(order))
        return frame.drop(*order_columns(order)) if order else frame

    def _due(self, stage: _Stage, table: RoutingTable, times: BatchTimes) -> dict[int, list[int]]:
        """The slots whose next timer has come, by channel."""
        known = self.view.operators.get(stage.step.name)
        if known is None:
            return {}
        event_time = stage.step.time_mode == "EventTime"
        now_ms = times.watermark_ms if event_time else times.batch_time_ms
        found: dict[int, list[int]] = {}
        for slot, ms in known.due.items():
            if ms <= now_ms:
                found.setdefault(int(table.slots[slot]), []).append(slot)
        return found

    # -- commit and publish ----------------------------------------------------------------

    def _commit(self, outcome: Outcome) -> None:
        if not self._lease.held():
            raise FencedError(f"another query has taken over {self.location}; this one ends")
        full = outcome.batch % self.options.full_manifest_every == 0
        manifest = manifest_of(outcome, self.view, self._flow_id, self._lease.owner, full)
        self._manifests.write(manifest)
        self.view = self._manifests.view_at(outcome.batch, self._flow_id)
        self._late_watermark_ms = outcome.watermark_ms

    def _publish(self, spark: SparkSession, batch: int, outputs: tuple[Prepared, ...]) -> None:
        for output in outputs:
            self._sink.publish(spark, batch, output.entries)

    # -- control ---------------------------------------------------------------------------

    def _control(self, outcome: Outcome, steps: Steps) -> dict[str, Any]:
        """Between batches: measure, put commands that took effect behind us, ask for the next batch."""
        moved = {
            name: len(moves(self.tables[name], table)) for name, table in outcome.tables.items()
        }
        self.tables = dict(outcome.tables)
        self.commands.done(self.tables)
        for name, reports in outcome.reports.items():
            self._measure(name, reports)
        self._ring(rows=sum(r.rows_in for rs in outcome.reports.values() for r in rs))
        self._collector.collect(self.view.batch)
        loads = {name: self._load_of(name) for name in self.tables}
        return section(self.view, self.tables, outcome.reports, moved, loads, steps)

    def _measure(self, name: str, reports: list[ChannelReport]) -> None:
        loads = self._loads[name]
        loads.begin_batch()
        for report in reports:
            if report.slots:
                slots, rows, busy = zip(*[(s.slot, s.rows, s.busy_ns) for s in report.slots], strict=True)
                loads.add(slots, rows, busy)

    def _load_of(self, name: str) -> Any:
        return self._loads[name].load()

    def _ring(self, rows: int) -> None:
        """Asks for a batch without input if there is something to do."""
        due_ms: int | None = None
        need = bool(self.view.carry)
        for step in self.flow.steps:
            known = self.view.operators.get(step.name)
            if known is None or not known.due:
                continue
            first = min(known.due.values())
            if step.time_mode != "EventTime":
                due_ms = first if due_ms is None else min(due_ms, first)
            elif rows or first <= self._late_watermark_ms:
                # The rows may have moved the watermark, which only the next batch knows.
                need = True
        if need:
            self.bell.ring()
        self.bell.set_due(due_ms)

    def _configure(self, spark: SparkSession) -> None:
        """Settings of the query's own session; the user's is another."""
        if not self._configured:
            # Adaptive execution would drop the tasks of empty channels.
            spark.conf.set("spark.sql.adaptive.enabled", "false")
            spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(CHUNK_ROWS))
            spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(CHUNK_BYTES))
            self._configured = True
