"""One micro-batch, top to bottom: admit, route, process, commit, publish, control.

`Engine.run` is what Spark calls for every batch. Everything before `commit` can happen any number
of times without anybody seeing it; everything after it is finished by the next start if it is cut
short.
"""

from __future__ import annotations

import logging
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from braided import failpoints
from braided.control.measure.slot_loads import SlotLoads
from braided.control.routing.pins import moved_keys
from braided.control.routing.table import Pin, RoutingTable, moves
from braided.errors import (
    BraidedError,
    ChannelMissingError,
    CheckpointMismatchError,
    FencedError,
    NondeterministicBatchError,
    WorkerLostError,
)
from braided.flow.graph import Flow
from braided.flow.inputs import Inputs
from braided.flow.key_hashes import key_hashes
from braided.flow.step import KeyedStep
from braided.options import Options
from braided.query import checkpoint
from braided.query.commands import Commands
from braided.query.commit import CONTROL, manifest_of
from braided.query.due import due_slots, next_alarm
from braided.query.gate import Gate, Stopped
from braided.query.plan import FlowPlan
from braided.query.progress import ProgressLog, Steps, section
from braided.query.reserve import Reserve
from braided.sinks.files import Sink, Sitting
from braided.spark.offset_log import BatchTimes, SparkLog
from braided.spark.session_settings import configure
from braided.spark.tick import Bell
from braided.steering.arriving import input_size
from braided.steering.control_thread import Batch, Helm
from braided.steering.event_log import EventLog
from braided.steering.policies import policies_of
from braided.steering.sampling import Sampler, waiting_rows
from braided.store.durable.files import checkpoint_files
from braided.store.durable.lease import Lease
from braided.store.history.garbage import Collector
from braided.store.history.manifest import CarryFile, OperatorMeta, OperatorView, Prepared, View
from braided.store.history.manifest_log import Manifests
from braided.store.slots.channel_state import Limits
from braided.store.slots.lmdb_cache import claim, host_directory
from braided.tasks.failure import from_worker, is_interrupt, is_lost_worker
from braided.tasks.first_state import FirstState
from braided.tasks.outcome import Outcome
from braided.tasks.reports import ChannelReport, ReportBox
from braided.tasks.spec import BatchSpec, Rehousing
from braided.tasks.state_location import StateLocation

__all__ = ["Engine"]

TRIES = 3
"""How often a batch is run when workers die or attempts disagree."""

log = logging.getLogger("braided")


class Engine:
    """Runs the batches of one query."""

    def __init__(
        self,
        flow: Flow,
        sinks: Sequence[Sink],
        location: str,
        options: Options,
        spark: SparkSession,
        interval_s: float = 0.0,
    ) -> None:
        self.flow = flow
        self.options = options
        self.location = location
        self.gate = Gate()
        self.progress = ProgressLog()
        self.error: BraidedError | None = None
        self.is_active: Callable[[], bool] = lambda: True
        self.spark_progress: Callable[[], Mapping[str, Any] | None] = lambda: None
        self._interval_s = interval_s
        self._helm: Helm | None = None
        self._inputs = Inputs(flow.roots, options.order_by)
        self.source = self._inputs.joined()
        self._sinks = dict(zip(_sink_names(sinks), zip(flow.ends, sinks, strict=True), strict=True))
        self._spark = spark
        self._log = SparkLog(Path(location))
        self._files = checkpoint_files(Path(location))
        self.bell = Bell()
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
        planned = self._log.last_offset()
        if planned is not None:
            self.bell = Bell(self._log.tick(planned))
        self._late_watermark_ms = 0
        memory = None
        if not started.fresh:
            newest = self._manifests.read(self.view.batch)
            self._late_watermark_ms = newest.watermark_ms
            memory = newest.extra.get(CONTROL)
        metas = self._fit()
        self._box = ReportBox(self._spark.sparkContext)
        self._plan = FlowPlan(
            self.flow,
            self._inputs,
            metas,
            self.options.order_preserving,
            self._location(),
            self._box.accumulator,
            self.options.on_error == "divert",
        )
        self._metas = metas
        self.tables: dict[str, RoutingTable] = {}
        for name, meta in metas.items():
            known = self.view.operators.get(name)
            self.tables[name] = (
                RoutingTable.initial(meta.slots, min(self.options.channels, meta.slots))
                if known is None
                else RoutingTable(
                    known.epoch,
                    known.channels,
                    known.table.astype(np.int32),
                    tuple(Pin(p.key, p.hash, p.check, p.slot) for p in known.pins),
                )
            )
        self.commands = Commands(self.tables, self.bell)
        self._loads = {name: SlotLoads(meta.slots) for name, meta in metas.items()}
        self.reserve = Reserve(self._spark)
        self._helm = self._steered(memory)
        self.progress.first = {**self._at_start(), "control": self._helm.summary()}
        self._collector = Collector(self._files, self._manifests, self.options.retained_manifests)
        self._collector.collect_orphans()
        for name, (_, sink) in self._sinks.items():
            identity = f"{self._flow_id}/{name}"
            sink.open(Sitting(self._spark, self._files, self.view.batch, identity))
        self._configured = False
        setting = self._spark.conf.get("spark.sql.streaming.noDataMicroBatches.enabled", "true")
        self._empty_batches = str(setting).lower() == "true"
        self._published: tuple[Prepared, ...] = ()
        # A stop may have come between a batch and the one that its watermark asked for.
        self._ring(had_input=not started.fresh and self._log.had_input(self.view.batch))

    def _at_start(self) -> dict[str, Any]:
        """The section of a progress that comes before any batch."""
        known = self.view.operators
        operators = {
            name: known.get(name) or OperatorView.empty(meta) for name, meta in self._metas.items()
        }
        view = View(self.view.flow, self.view.batch, operators, self.view.carry)
        loads = {name: self._load_of(name) for name in operators}
        return section(view, self.tables, {name: [] for name in operators}, {}, loads, Steps())

    def _fit(self) -> dict[str, OperatorMeta]:
        """The operators as the checkpoint knows them, or will from now on."""
        metas = {
            step.name: OperatorMeta(
                ordinal=0,
                slots=self.options.slots,
                key=step.key_schema.simpleString(),
                state=step.state,
                codec=step.codec,
                time_mode=step.time_mode,
            )
            for step in self.flow.steps
        }
        continued = {step.name: step.continued for step in self.flow.steps}
        asked = self.options.slots if "slots" in self.options.given else None
        fitted = checkpoint.fit(self.view, metas, continued, asked)
        self._imports: dict[str, FirstState] = {}
        for step in self._new_steps():
            brought_in = step.imported(self._files, fitted[step.name])
            if brought_in is not None:
                fitted[step.name], self._imports[step.name] = brought_in
        return fitted

    def _location(self) -> StateLocation:
        base = self.options.cache_dir or self._spark.conf.get("spark.local.dir", None)
        base = base or tempfile.gettempdir()
        claim(host_directory(Path(base), self._flow_id), self._files.root)
        limits = Limits(
            snapshot_min_bytes=self.options.snapshot_min_bytes,
            snapshot_factor=self.options.snapshot_factor,
            snapshots_per_task=self.options.snapshot_per_task,
        )
        return StateLocation(self._flow_id, self._files.root, base, limits)

    def _steered(self, memory: str | None) -> Helm:
        context = self._spark.sparkContext
        cores = context.getConf().get("spark.executor.cores", None)
        parallelism = context.defaultParallelism
        policies = policies_of(self.options, parallelism, int(cores or parallelism))
        most = policies.settings.limits.channels_max
        return Helm(
            policies,
            memory,
            Sampler(self.flow, self._interval_s),
            EventLog(Path(self._files.root)),
            self._proposed,
            self._propose_pin,
            lambda batch, content: self.progress.amend(batch, "control", content),
            lambda: waiting_rows(self.spark_progress()),
            self._hashes,
            None if policies.scale == "off" else lambda: self.warm(most),
        )

    def _proposed(self, tables: Mapping[str, RoutingTable]) -> None:
        """Tables that the controller would like, from its own thread."""
        self.warm(max(table.channels for table in tables.values()))
        self.commands.propose(tables)

    def _propose_pin(self, name: str, change: Pin | bytes) -> None:
        self.commands.propose_pin(name, change)

    def _foreseen(self, df: DataFrame, batch: int, times: BatchTimes) -> Mapping[str, int]:
        """Channels that a batch should have, by the size of its input; a batch does without an
        answer, whatever the reason.
        """
        try:
            if not self._steering.foresees:
                return {}
            size = input_size(df, self._log, batch)
            return self._steering.foresee(batch, size, times.batch_time_ms)
        except Exception as error:
            if is_interrupt(error):
                raise
            log.warning("batch %d keeps its channels, its input was not sized: %s", batch, error)
            return {}

    def _hashes(self, name: str, key: bytes) -> tuple[int, int] | None:
        """The hashes of a key, by the same JVM expressions that route its rows; None where a key
        can't be pinned.
        """
        step = next(step for step in self.flow.steps if step.name == name)
        if not step.can_be_pinned:
            return None
        return key_hashes(self._spark, step.key_schema, key)

    def close(self) -> None:
        """Lets go of the checkpoint. Safe to call again."""
        if self._helm is not None:
            self._helm.close()
        self.bell.close()
        self._lease.release()

    def warm(self, channels: int) -> None:
        """Has workers started for so many channels, before a batch needs them."""
        self.reserve.warm(channels, max(table.channels for table in self.tables.values()))

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
        if not self.is_active() or (self.gate.stopping and is_interrupt(error)):
            return Stopped()
        found = error if isinstance(error, BraidedError) else from_worker(error)
        if found is not None:
            self.error = found
        self.close()
        return found or error

    def _run(self, df: DataFrame, batch: int) -> None:
        if not self._configured:
            configure(df.sparkSession, [step.arriving for step in self.flow.steps])
            self._configured = True
        if batch == self.view.batch:
            self._redelivered(df, batch)
            return
        if batch != self.view.batch + 1:
            raise CheckpointMismatchError(
                f"Spark runs batch {batch} of {self.location}, but the newest manifest is of batch "
                f"{self.view.batch}: the checkpoint was changed while the query ran"
            )
        steps = Steps()
        self.bell.answer(self._log.tick(batch))
        with steps.step("admit"):
            cut = self.commands.cut()
            times = self._log.times(batch)
            asked = self._foreseen(df, batch, times)
            tables = self.commands.take(self._load_of, asked)
            if cut is not None:
                # Rows that are left for the next batch must not find their timers fired.
                times = BatchTimes(times.batch_time_ms, self._late_watermark_ms)
        outcome = self._process(df, batch, times, tables, cut, steps)
        with steps.step("commit"):
            self._commit(outcome)
            # Spark has recorded the batch before this one, so nobody asks for its output again.
            for output in self._published:
                self._sinks[output.sink][1].discard(output.entries)
            self._published = outcome.outputs
        with steps.step("publish"):
            failpoints.reach("after-manifest")
            self._publish(df.sparkSession, batch, outcome.outputs)
        with steps.step("control"):
            content = self._control(outcome, steps)
        self.progress.add(batch, content)
        # From here on in another thread, while Spark finds out what the next batch is.
        self._steering.see(Batch(outcome, self.view, time.time()))
        failpoints.reach("after-publish")

    def _redelivered(self, df: DataFrame, batch: int) -> None:
        """A batch that a manifest has made true already: publish what it names."""
        # Spark takes the watermark from the rows it sees, and its own stateful steps must run.
        df.write.format("noop").mode("overwrite").save()
        manifest = self._manifests.read(batch)
        for output in manifest.outputs:
            if output.sink not in self._sinks:
                raise CheckpointMismatchError(
                    f"batch {batch} is committed but not yet published, and its output was made "
                    f"for {output.sink}: start the query once more with the sink it had"
                )
        self._publish(df.sparkSession, batch, manifest.outputs)
        self._ring(had_input=True)
        self.progress.add(batch, {"batchId": batch, "redelivered": True, "operators": {}})

    # -- process ---------------------------------------------------------------------------

    def _process(
        self,
        df: DataFrame,
        batch: int,
        times: BatchTimes,
        tables: Mapping[str, RoutingTable],
        cut: int | None,
        steps: Steps,
    ) -> Outcome:
        initial = self._initial(batch, times)
        due = due_slots(self.flow, self.view, tables, times, initial)
        channels = {name: table.channels for name, table in tables.items()}
        rehoused = {
            name: found
            for name, table in tables.items()
            if (found := _rehoused(self.tables[name], table))
        }
        for attempt in range(1, TRIES + 1):
            token = uuid.uuid4().hex[:12]
            spec = BatchSpec(
                token=token,
                batch=batch,
                batch_time_ms=times.batch_time_ms,
                watermark_ms=times.watermark_ms,
                late_watermark_ms=self._late_watermark_ms,
                due=due,
                cut=cut,
                rehoused=rehoused,
                initial={name: start.runs for name, start in initial.items()},
                failpoint=failpoints.armed(),
            )
            try:
                outputs, fed_back = self._prepare(df, spec, tables, steps)
                reports = self._box.take(token, channels)
                break
            except (NondeterministicBatchError, ChannelMissingError) as error:
                if attempt == TRIES:
                    raise
                log.warning("batch %d runs again: %s", batch, error)
            except Exception as error:
                lost = is_lost_worker(error) and from_worker(error) is None
                if not lost or self.gate.stopping:
                    raise
                if attempt == TRIES:
                    raise WorkerLostError(
                        f"a worker process died {TRIES} times in batch {batch}, which is not "
                        f"committed, with operators {', '.join(tables)}: it was out of memory, or "
                        "crashed in native code. Spark's log has the executor's last words"
                    ) from error
                log.warning("batch %d runs again: a worker process was lost", batch)
        return Outcome(
            batch=batch,
            batch_time_ms=times.batch_time_ms,
            watermark_ms=times.watermark_ms,
            metas=self._metas,
            tables=tables,
            reports=reports,
            outputs=outputs,
            fed_back=fed_back,
            initial=initial,
        )

    def _prepare(
        self, df: DataFrame, spec: BatchSpec, tables: Mapping[str, RoutingTable], steps: Steps
    ) -> tuple[tuple[Prepared, ...], list[CarryFile]]:
        """Runs a try of a batch: what the sinks will publish, and what comes in again."""
        attempt = f"{spec.batch}-{spec.token}"

        def run(frame: DataFrame) -> None:
            with steps.step("process"):
                frame.write.format("noop").mode("overwrite").save()

        with steps.step("route"):
            failpoints.reach("before-routing")
            df.sparkSession.sparkContext.setJobDescription(f"braided batch {spec.batch}")
            frames = self._plan.frames(
                df, spec, tables, self.view.carry, self._late_watermark_ms, run
            )
        try:
            outputs = []
            for number, (name, (end, sink)) in enumerate(self._sinks.items()):
                if number:
                    failpoints.reach("between-prepares")
                with steps.step("route"):
                    frame = frames.output(end)
                with steps.step("process"):
                    entries = sink.prepare(frame, f"{attempt}-{number}")
                outputs.append(Prepared(name, entries))
            with steps.step("process"):
                fed_back = frames.fed_back(attempt)
        finally:
            frames.close()
        return tuple(outputs), fed_back

    def _initial(self, batch: int, times: BatchTimes) -> dict[str, FirstState]:
        """Writes what operators that are new to the checkpoint start with."""
        made = {}
        for step in self._new_steps():
            if step.name in self._imports:
                made[step.name] = self._imports[step.name]
            elif step.starts_with_state:
                meta, root = self._metas[step.name], self._files.root
                made[step.name] = step.write_first_state(meta, root, batch, times)
        return made

    def _new_steps(self) -> list[KeyedStep]:
        """Steps that the checkpoint does not know yet."""
        return [step for step in self.flow.steps if step.name not in self.view.operators]

    # -- commit and publish ----------------------------------------------------------------

    def _commit(self, outcome: Outcome) -> None:
        if not self._lease.held():
            raise FencedError(f"another query has taken over {self.location}; this one ends")
        full = outcome.batch % self.options.full_manifest_every == 0
        manifest = manifest_of(
            outcome, self.view, self._flow_id, self._lease.owner, full, self._steering.memory
        )
        self._manifests.write(manifest)
        self.view = self._manifests.view_at(outcome.batch, self._flow_id)
        self._late_watermark_ms = outcome.watermark_ms

    def _publish(self, spark: SparkSession, batch: int, outputs: tuple[Prepared, ...]) -> None:
        for number, output in enumerate(outputs):
            if number:
                failpoints.reach("between-sinks")
            self._sinks[output.sink][1].publish(spark, batch, output.entries)

    # -- control ---------------------------------------------------------------------------

    def _control(self, outcome: Outcome, steps: Steps) -> dict[str, Any]:
        """Between batches: measure, put commands that took effect behind us, ask for the
        next batch.
        """
        moved = {
            name: len(moves(self.tables[name], table)) for name, table in outcome.tables.items()
        }
        self.tables = dict(outcome.tables)
        self.commands.done(self.tables)
        for name, reports in outcome.reports.items():
            self._measure(name, reports)
        self._ring(self._log.had_input(outcome.batch))
        self._collector.collect(self.view.batch)
        loads = {name: self._load_of(name) for name in self.tables}
        content = section(self.view, self.tables, outcome.reports, moved, loads, steps)
        return {**content, "control": self._steering.summary()}

    @property
    def _steering(self) -> Helm:
        assert self._helm is not None  # since the checkpoint was opened
        return self._helm

    def _measure(self, name: str, reports: list[ChannelReport]) -> None:
        loads = self._loads[name]
        loads.begin_batch()
        for report in reports:
            if report.slots:
                slots, rows, busy = zip(
                    *[(s.slot, s.rows, s.busy_ns) for s in report.slots], strict=True
                )
                loads.add(slots, rows, busy)

    def _load_of(self, name: str) -> Any:
        return self._loads[name].load()

    def _ring(self, had_input: bool) -> None:
        """Asks for a batch without input if there is something to do."""
        now, due_ms = next_alarm(
            self.flow, self.view, self._late_watermark_ms, had_input, self._empty_batches
        )
        starts = (s.starts_with_state or s.name in self._imports for s in self._new_steps())
        if now or self.view.carry or any(starts):
            self.bell.ring()
        self.bell.set_due(due_ms)


def _rehoused(before: RoutingTable, after: RoutingTable) -> dict[int, list[Rehousing]]:
    """The keys that change slots, by the channel that has both."""
    found: dict[int, list[Rehousing]] = {}
    for moved in moved_keys(before, after):
        channel = int(after.slots[moved.taker])
        found.setdefault(channel, []).append(Rehousing(moved.key, moved.donor, moved.taker))
    return found


def _sink_names(sinks: Sequence[Sink]) -> list[str]:
    """What the manifest calls each sink: its kind, with a number where there are several."""
    kinds = [type(sink).__name__ for sink in sinks]
    return kinds if len(kinds) == 1 else [f"{kind}-{i}" for i, kind in enumerate(kinds)]
