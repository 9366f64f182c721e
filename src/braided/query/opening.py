"""Opens a query: takes its checkpoint, sees that the flow fits it, and puts its parts together."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from braided.control.measure.estimator import Estimator
from braided.control.routing.pins import without_shares
from braided.control.routing.table import RoutingTable
from braided.flow.graph import Flow
from braided.flow.inputs import Inputs
from braided.flow.key_hashes import KeyHashes, KeyNaming
from braided.flow.upstream import upstream_of
from braided.hosts.opening import open_transition, place_frames
from braided.options import Options
from braided.query.admission import Admission
from braided.query.between_batches import BetweenBatches
from braided.query.checkpoint import (
    fit,
    known_names,
    open_sources,
    open_view,
    refuse_other_sources,
)
from braided.query.commit import CONTROL, Committer
from braided.query.counting import Counting, countable
from braided.query.cutting import Cutter, open_cutter
from braided.query.engine import BatchSteps, Engine
from braided.query.figures import Figures
from braided.query.first_routing import read_routing
from braided.query.first_states import FirstStates
from braided.query.gate import Gate
from braided.query.migrating import Migrations
from braided.query.outputs import Outputs
from braided.query.pair_settings import pair_settings
from braided.query.plan import FlowPlan
from braided.query.processing import Processing
from braided.query.progress import ProgressLog, StepTimes, section
from braided.query.stored_tables import StoredHistory, table_of
from braided.query.version import Version
from braided.sinks.base import Sink, SinkSetting
from braided.sinks.identity import NamedSink, name_sinks, refuse_lost_output
from braided.spark.executors import local_cores, local_cpus
from braided.spark.filled_progress import FilledProgress
from braided.spark.offset_log import SparkLog
from braided.spark.query_handle import BatchCall, QueryHandle
from braided.spark.source_log import SourceLog, source_numbers
from braided.spark.tick import Bell
from braided.steering.commands import Commands
from braided.steering.control_thread import ControlThread
from braided.steering.dry_run import DryRuns
from braided.steering.event_log import open_event_log
from braided.steering.policy_settings import policies_of
from braided.steering.reserve import TASK_MODULES, Reserve
from braided.steering.same_batch import SameBatch
from braided.steering.sampling import COLD_BATCHES, Sampler
from braided.store.durable.lease import Lease, acquire_lease
from braided.store.durable.store import Store
from braided.store.history.garbage import Collector
from braided.store.history.manifest import OperatorMeta, OperatorVersion, Prepared, View
from braided.store.history.manifest_log import ManifestLog
from braided.store.slots.channel_state import SnapshotLimits
from braided.tasks.first_state import FirstState, import_path
from braided.tasks.reports import ChannelReport, ReportBox
from braided.tasks.state_location import CacheSetting, StateLocation

__all__ = ["OpenCheckpoint", "OpenQuery", "open_query"]


@dataclass(frozen=True)
class OpenCheckpoint:
    """A checkpoint that this process may write, and that a flow fits."""

    location: str
    files: Store
    manifests: ManifestLog
    spark_log: SparkLog
    source_log: SourceLog
    lease: Lease
    flow_id: str
    flow: Flow
    """The steps by the names that the checkpoint has for them."""
    version: Version
    tick: int
    """Where our own source was when the newest batch began; -1 before the first."""
    had_input: bool
    """Whether the newest batch took anything in."""
    metas: Mapping[str, OperatorMeta]
    """The operators as the checkpoint knows them, or will from now on."""
    imported: Mapping[str, FirstState]
    """State that was brought in for operators that are new to it."""
    control_memory: str | None
    outputs: tuple[Prepared, ...]
    """What the newest batch prepared for the sinks that the query had then."""


@dataclass(frozen=True)
class OpenQuery:
    """A query that is ready to be started by Spark."""

    location: str
    source: DataFrame
    """What Spark is to read, beside the tick."""
    bell: Bell
    call: BatchCall
    """What Spark is to call for every batch."""
    engine: Engine
    commands: Commands
    dry_runs: DryRuns
    reserve: Reserve
    control: ControlThread
    cutter: Cutter
    migrations: Migrations
    handle: QueryHandle
    stop_timeout_s: float
    temporary: bool
    """Whether the checkpoint is nobody's, and goes with the query."""

    def close(self) -> None:
        """The query has ended, or never began: lets go of all that it had. Again is fine."""
        self.engine.close()
        self.call.let_go()
        if self.temporary and not self.handle.has_failed():  # then somebody may want to look
            shutil.rmtree(self.location, ignore_errors=True)


def open_query(
    flow: Flow,
    sinks: Sequence[Sink],
    root: Store,
    options: Options,
    spark: SparkSession,
    handle: QueryHandle,
    interval_s: float = 0.0,
    temporary: bool = False,
    ends_itself: bool = False,
) -> OpenQuery:
    """The parts of a query on a checkpoint; nobody else writes it until its engine is closed.

    `ends_itself`: whether its trigger does, when it has taken in all there is.
    """
    inputs = Inputs(flow.roots, options.order_by)
    source = inputs.joined()  # refused, if at all, before anything is left behind
    location, files = root.location.text, root.below("braided")
    lease = acquire_lease(files, f"query on {location}", options.takeover)
    # What was opened is closed in the other order, the lease last, if the rest can't be opened.
    with ExitStack() as undo:
        undo.callback(lease.release)
        box = ReportBox(spark.sparkContext)
        undo.callback(box.close)
        # Rows that are left would come out of order, or after the end.
        can_cut = not (options.order_preserving or ends_itself)
        cutter = open_cutter(spark, flow, can_cut, is_watched=options.cut and can_cut)
        undo.callback(cutter.close)
        numbers = source_numbers(source)
        checkpoint = _open_checkpoint(root, files, lease, flow, options, numbers)
        bell = Bell(checkpoint.tick)
        undo.callback(bell.close)
        parts = _assemble(
            checkpoint, inputs, sinks, options, spark, handle, bell, box, cutter, interval_s, undo
        )
        opened = OpenQuery(
            location=location,
            source=source,
            bell=bell,
            call=BatchCall(parts.engine.run),
            engine=parts.engine,
            commands=parts.commands,
            dry_runs=parts.dry_runs,
            reserve=parts.reserve,
            control=parts.control,
            cutter=cutter,
            migrations=parts.migrations,
            handle=handle,
            stop_timeout_s=options.stop_timeout_s,
            temporary=temporary,
        )
        undo.pop_all()  # from here on `close` does it
        return opened


def _open_checkpoint(
    root: Store,
    files: Store,
    lease: Lease,
    flow: Flow,
    options: Options,
    sources: Sequence[int],
) -> OpenCheckpoint:
    location, manifests = root.location.text, ManifestLog(files)
    spark_log = SparkLog(root, sources)
    started = open_view(manifests, spark_log, location)
    view = started.view
    source_log = open_sources(root, manifests, spark_log, started, sources)
    planned = spark_log.last_offset()
    tick = -1
    if planned is not None:
        tick = spark_log.tick(planned)
        refuse_other_sources(spark_log.sources(planned), len(sources), location)
    watermark_ms, memory = 0, None
    outputs: tuple[Prepared, ...] = ()
    if not started.fresh:
        newest = manifests.read(view.batch)
        watermark_ms, memory = newest.watermark_ms, newest.extra.get(CONTROL)
        outputs = newest.outputs
    go_by_class = {step.name: step.goes_by_class for step in flow.steps}
    kept = {name: operator.meta for name, operator in view.operators.items()}
    flow = replace(flow, known_as=known_names(view, go_by_class, options.drop_operators), kept=kept)
    metas, imported = _fit(flow, view, files, options)
    tables = _tables(flow, manifests, view, metas, options.channels)
    return OpenCheckpoint(
        location=location,
        files=files,
        manifests=manifests,
        spark_log=spark_log,
        source_log=source_log,
        lease=lease,
        flow_id=started.flow,
        flow=flow,
        version=Version(view, tables, watermark_ms),
        tick=tick,
        had_input=not started.fresh and spark_log.had_input(view.batch),
        metas=metas,
        imported=imported,
        control_memory=memory,
        outputs=outputs,
    )


def _fit(
    flow: Flow, view: View, files: Store, options: Options
) -> tuple[dict[str, OperatorMeta], dict[str, FirstState]]:
    """The operators as the checkpoint is to know them, and state that was imported for them."""
    metas = {
        step.name: OperatorMeta(
            ordinal=0,
            slots=options.slots,
            key=step.key_schema.simpleString(),
            state=step.state,
            codec=step.codec,
            time_mode=step.time_mode,
        )
        for step in flow.steps
    }
    continued = {step.name: step.continued for step in flow.steps}
    slots_asked = options.slots if "slots" in options.given else None
    fitted = fit(view, metas, continued, slots_asked, options.drop_operators)
    # What was imported for operators that have run since is in their state. If one of them is
    # dropped and added again, it must not come back.
    stale = {import_path(name) for name in view.operators} & set(files.list("import"))
    files.delete(sorted(stale))
    imported = {}
    for step in flow.steps:
        if step.name in view.operators:
            continue
        state = step.imported(files, fitted[step.name])
        if state is not None:
            fitted[step.name], imported[step.name] = state
    return fitted, imported


def _tables(
    flow: Flow,
    manifests: ManifestLog,
    view: View,
    metas: Mapping[str, OperatorMeta],
    channels: int,
) -> dict[str, RoutingTable]:
    """The tables in effect, and first ones for operators that are new. Of an operator whose keys
    can be split no longer, none is.
    """
    tables = {}
    for step in flow.steps:
        meta, operator = metas[step.name], view.operators.get(step.name)
        if operator is None:
            table = RoutingTable.initial(meta.slots, min(channels, meta.slots))
        else:
            table = table_of(operator, manifests)
            if step.name not in flow.can_split:
                table = without_shares(table, table.epoch + 1)
        tables[step.name] = table
    return tables


class _Parts(NamedTuple):
    """What is put together for a query."""

    engine: Engine
    commands: Commands
    dry_runs: DryRuns
    reserve: Reserve
    control: ControlThread
    migrations: Migrations


def _assemble(
    checkpoint: OpenCheckpoint,
    inputs: Inputs,
    sinks: Sequence[Sink],
    options: Options,
    spark: SparkSession,
    handle: QueryHandle,
    bell: Bell,
    box: ReportBox,
    cutter: Cutter,
    interval_s: float,
    undo: ExitStack,
) -> _Parts:
    """`undo` gets what is to be closed if the rest can't be put together."""
    version, spark_log, metas = checkpoint.version, checkpoint.spark_log, checkpoint.metas
    flow = checkpoint.flow
    location = _state_location(checkpoint, options)
    divert = options.on_error == "divert"
    placed = place_frames(spark, options)
    plan = FlowPlan(
        flow,
        inputs,
        metas,
        options.order_preserving,
        location,
        box.accumulator,
        divert,
        placed,
        cutter.address,
        divert_late=options.late == "divert",
        pairs=pair_settings(flow, spark, options),
    )
    commands, reserve = Commands(version.tables, bell), Reserve(spark)
    if options.routing is not None:
        # State that it starts with is where hashes say, so keys move in the first batch.
        new = {n: table for n, table in version.tables.items() if n not in version.view.operators}
        if new:
            assigned = read_routing(spark, options.routing, flow.steps, new)
            commands.ask(commands.to_assign(assigned))
    transition = open_transition(
        spark, placed, location, upstream_of(flow), options, TASK_MODULES, bell.ring
    )
    if transition is not None:
        undo.callback(transition.close)
    context = spark.sparkContext
    parallelism = context.defaultParallelism
    host_cores = int(context.getConf().get("spark.executor.cores", None) or parallelism)
    policies = policies_of(
        options,
        parallelism,
        host_cores,
        local_cores(spark),
        cpus=local_cpus(spark),
        operators=[step.name for step in flow.steps],
        key_names=KeyNaming(flow.steps),
    )
    same_batch = SameBatch(
        options.same_batch, policies.settings.balance, frozenset(countable(plan))
    )
    control = ControlThread(
        policies,
        checkpoint.control_memory,
        Sampler(flow, interval_s),
        open_event_log(checkpoint.files, checkpoint.lease.held),
        commands,
        reserve,
        KeyHashes(spark, flow.steps),
        handle,
        same_batch,
    )
    undo.callback(control.close)
    counting = Counting(plan, same_batch, control)
    migrations = Migrations(transition, cutter, bell.ring, commands.hold_input_next, control.note)
    slots = {name: meta.slots for name, meta in metas.items()}
    estimator = Estimator(options.window_batches, slots, COLD_BATCHES)
    first = {**_section_before(version, metas, estimator), "control": control.summary()}
    progress = ProgressLog(control, first)
    collector = Collector(checkpoint.files, checkpoint.manifests, options.retained_manifests)
    stored = StoredHistory()
    collector.collect_orphans(stored.see)
    version = replace(version, history=stored.history)
    committer = Committer(
        checkpoint.manifests,
        checkpoint.lease,
        checkpoint.flow_id,
        checkpoint.location,
        options.full_manifest_every,
        checkpoint.source_log,
    )
    ending = ExitStack()
    undo.callback(ending.close)
    named = _open_sinks(sinks, checkpoint, spark, committer, ending)
    outputs = Outputs(flow.ends, named, checkpoint.outputs, ending)
    gate = Gate()
    first_states = FirstStates(flow.steps, metas, checkpoint.imported, checkpoint.files)
    steps = BatchSteps(
        Admission(
            spark_log,
            checkpoint.source_log,
            bell,
            commands,
            control,
            estimator,
            counting,
            transition,
        ),
        Processing(flow, plan, metas, first_states, outputs, box, gate, cutter),
        committer,
        outputs,
        BetweenBatches(
            flow,
            first_states,
            spark_log,
            bell,
            commands,
            estimator,
            control,
            collector,
            _runs_empty_batches(spark),
            migrations,
            cutter,
            counting,
            transition,
        ),
    )
    # A stop may have come between a batch and the one that its watermark asked for.
    steps.between.ask_for_next(version, checkpoint.had_input)
    arriving = [step.arriving for step in flow.steps]
    engine = Engine(
        checkpoint.location,
        flow,
        version,
        steps,
        arriving,
        progress,
        Figures(FilledProgress(spark, bell), handle, outputs),
        gate,
        handle,
        control,
        migrations,
        bell,
        checkpoint.lease,
        transition,
    )
    return _Parts(
        engine,
        commands,
        DryRuns(commands, estimator, transition),
        reserve,
        control,
        migrations,
    )


def _state_location(checkpoint: OpenCheckpoint, options: Options) -> StateLocation:
    """Where tasks find the state."""
    cache = CacheSetting(options.cache_dir, options.cache_max_bytes)
    limits = SnapshotLimits(
        snapshot_min_bytes=options.snapshot_min_bytes,
        snapshot_factor=options.snapshot_factor,
        snapshots_per_task=options.snapshots_per_task,
    )
    return StateLocation(checkpoint.flow_id, checkpoint.files, cache, limits)


def _open_sinks(
    sinks: Sequence[Sink],
    checkpoint: OpenCheckpoint,
    spark: SparkSession,
    committer: Committer,
    ending: ExitStack,
) -> list[NamedSink]:
    """The sinks, by what the checkpoint calls them."""
    batch, outputs = checkpoint.version.batch, checkpoint.outputs
    named = name_sinks(sinks, outputs)
    if checkpoint.spark_log.last_commit() != batch:  # it will be redelivered
        refuse_lost_output(batch, outputs, named)
    for each in named:
        identity, check = f"{checkpoint.flow_id}/{each.name}", committer.check_lease
        each.sink.open(SinkSetting(spark, checkpoint.files, batch, identity, check, ending))
    return named


def _section_before(
    version: Version, metas: Mapping[str, OperatorMeta], estimator: Estimator
) -> dict[str, object]:
    """The section of a progress that comes before any batch."""
    view = version.view
    operators = {
        name: view.operators.get(name) or OperatorVersion.empty(meta)
        for name, meta in metas.items()
    }
    shown = View(view.flow, view.batch, operators, view.carry)
    nothing: dict[str, list[ChannelReport]] = {name: [] for name in operators}
    loads = {name: estimator.load(name) for name in operators}
    return section(shown, version.tables, nothing, {}, loads, StepTimes())


def _runs_empty_batches(spark: SparkSession) -> bool:
    """Whether there are batches for the sake of the watermark alone, as Spark is told."""
    setting = spark.conf.get("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    return str(setting).lower() == "true"
