"""A batch from its input to its outcome: planned, run in tasks, and reported; nothing counts yet.

A worker process that dies, and attempts of one channel that disagree, cost a try and not the query.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from pyspark.sql import DataFrame

from braided import failpoints
from braided.control.routing.key_moves import moved_keys
from braided.control.routing.table import RoutingTable
from braided.errors import ChannelMissingError, NondeterministicBatchError, WorkerLostError
from braided.flow.graph import Flow
from braided.flow.upstream import ancestors_of
from braided.query.admission import Admitted
from braided.query.behind import (
    carried_since,
    carried_watermarks,
    late_watermarks,
    left_behind,
)
from braided.query.cutting import Cutter
from braided.query.due import due_slots
from braided.query.first_states import FirstStates
from braided.query.gate import Gate
from braided.query.merging import merge_split_keys, split_keys
from braided.query.outputs import Outputs
from braided.query.plan import BatchFrames, FlowPlan
from braided.query.progress import StepTimes
from braided.query.version import Version
from braided.store.history.manifest import CarryFile, DeadFile, OperatorMeta, Prepared, View
from braided.store.history.shipped_chains import ChainPacker, ShippedChains, ship_chains
from braided.tasks.failure import from_worker, is_lost_worker
from braided.tasks.first_state import FirstState
from braided.tasks.outcome import Outcome
from braided.tasks.reports import ChannelReport, ReportBox
from braided.tasks.shipped_moves import ShippedMoves, ship_moves
from braided.tasks.spec import BatchSpec

__all__ = ["Processing"]

TRIES = 3
"""How often a batch is run when workers die or attempts disagree."""

log = logging.getLogger("braided")


class _Ran(NamedTuple):
    """What one try of a batch came to."""

    outputs: tuple[Prepared, ...]
    """What the sinks will publish."""
    fed_back: list[CarryFile]
    """What comes in again."""
    held: list[CarryFile]
    """What was left before anybody looked at it."""
    reports: dict[str, list[ChannelReport]]
    late: dict[str, int]
    diverted: tuple[DeadFile, ...]


class Processing:
    """Runs the tasks of batches."""

    def __init__(
        self,
        flow: Flow,
        plan: FlowPlan,
        metas: Mapping[str, OperatorMeta],
        first_states: FirstStates,
        outputs: Outputs,
        box: ReportBox,
        gate: Gate,
        cutter: Cutter,
    ) -> None:
        self._flow = flow
        self._plan = plan
        self._metas = metas
        self._first_states = first_states
        self._outputs = outputs
        self._box = box
        self._gate = gate
        self._cutter = cutter
        self._ancestors = ancestors_of(flow)
        self._fires = frozenset(step.name for step in flow.steps if step.fires)
        self._packers = {name: ChainPacker() for name in metas}
        self._written: list[str] = []
        """Files of the newest batch that were there for its tasks only."""

    def process(
        self, df: DataFrame, admitted: Admitted, before: Version, steps: StepTimes
    ) -> Outcome:
        batch, times, tables = admitted.batch, admitted.times, admitted.tables
        initial = self._first_states.write(before.view, batch, times)
        chains = self._chains(batch, before.view, tables)
        spec = BatchSpec(
            token="",
            batch=batch,
            batch_time_ms=times.batch_time_ms,
            watermark_ms=times.watermark_ms,
            late_watermark_ms=before.watermark_ms,
            due=due_slots(self._flow, before.view, tables, times, initial),
            cut=admitted.cut,
            holds_input=admitted.holds_input,
            moves=self._moves(batch, before, tables, initial),
            split=split_keys(tables),
            chains=chains,
            initial={name: state.runs for name, state in initial.items()},
            failpoint=failpoints.armed(),
            behind=late_watermarks(before),
            carried=carried_watermarks(before),
            is_watched=self._cutter.watches,
        )
        channels = {name: table.channels for name, table in tables.items()}
        for tries in range(1, TRIES + 1):
            spec = spec.of_try(uuid.uuid4().hex[:12])
            try:
                with self._cutter.running(spec.token, channels, is_first=tries == 1):
                    ran = self._run(df, spec, tables, before, steps)
                reports = ran.reports
                left = _left(ran)
                behind = left_behind(
                    self._ancestors, reports, left, self._fires, before, times.watermark_ms
                )
                break
            except (NondeterministicBatchError, ChannelMissingError) as error:
                if tries == TRIES:
                    raise
                log.warning("batch %d runs again: %s", batch, error)
            except Exception as error:
                lost = is_lost_worker(error) and from_worker(error) is None
                if not lost or self._gate.stopping:
                    raise
                if tries == TRIES:
                    raise WorkerLostError(
                        f"a worker process died {TRIES} times in batch {batch}, which is not "
                        f"committed, with operators {', '.join(tables)}: it was out of memory, or "
                        "crashed in native code. Spark's log has the executor's last words"
                    ) from error
                log.warning("batch %d runs again: a worker process was lost", batch)
        files = self._plan.location.store
        merged = merge_split_keys(
            self._flow, files, self._metas, before.view, spec, tables, reports
        )
        failpoints.reach("merged")
        return Outcome(
            batch=batch,
            batch_time_ms=times.batch_time_ms,
            watermark_ms=times.watermark_ms,
            metas=self._metas,
            tables=tables,
            reports=reports,
            outputs=ran.outputs,
            fed_back=ran.fed_back + ran.held,
            initial=initial,
            behind=behind,
            carried=carried_since(left, before),
            merged=merged,
            late=ran.late,
            diverted=ran.diverted,
            cut=self._cutter.taken(),
        )

    def _chains(
        self, batch: int, view: View, tables: Mapping[str, RoutingTable]
    ) -> dict[str, ShippedChains]:
        """What the tasks need to open their slots, of the operators that have state."""
        files, shipped = self._plan.location.store, {}
        files.delete(self._written)
        for name, version in view.operators.items():
            if name in tables:
                table = tables[name]
                packed = self._packers[name].pack(version.chains, table.slots, table.channels)
                path = _short_lived(name, batch, "chains")
                shipped[name] = ship_chains(files, path, packed)
        self._written = [each.file for each in shipped.values() if each.file]
        return shipped

    def _moves(
        self,
        batch: int,
        before: Version,
        tables: Mapping[str, RoutingTable],
        initial: Mapping[str, FirstState],
    ) -> dict[str, ShippedMoves]:
        """The keys that change slots, of the operators that have state."""
        files, shipped = self._plan.location.store, {}
        for name, table in tables.items():
            version = before.view.operators.get(name)
            if version is None and name not in initial:
                continue
            moves = moved_keys(before.tables[name], table)
            if len(moves):
                path = partial(_short_lived, name, batch)
                chains = None if version is None else version.chains
                shipped[name] = ship_moves(files, path, moves, table, chains)
        self._written += [file for each in shipped.values() for file in each.written]
        return shipped

    def close(self) -> None:
        """No batch comes any more, and no report is waited for."""
        self._box.close()
        self._cutter.close()

    def _run(
        self,
        df: DataFrame,
        spec: BatchSpec,
        tables: Mapping[str, RoutingTable],
        before: Version,
        steps: StepTimes,
    ) -> _Ran:
        """One try of a batch."""
        attempt = f"{spec.batch}-{spec.token}"

        def compute(frame: DataFrame) -> None:
            with steps.step("process"):
                frame.write.format("noop").mode("overwrite").save()

        with steps.step("route"):
            failpoints.reach("before-routing")
            df.sparkSession.sparkContext.setJobDescription(f"braided batch {spec.batch}")
            frames = BatchFrames(self._plan, df, spec, tables, before.view.carry, compute)
        try:
            outputs = self._outputs.prepare(frames, attempt, steps)
            with steps.step("process"):
                fed_back = frames.fed_back(attempt)
                held = frames.held_back(attempt)
                channels = {name: table.channels for name, table in tables.items()}
                reports = self._box.take(spec.token, channels)
                late = frames.late()
                diverted = frames.late_letters(
                    {
                        name: late.get(name, 0) + sum(report.rows_late for report in each)
                        for name, each in reports.items()
                    }
                )
        finally:
            frames.close()
        return _Ran(outputs, fed_back, held, reports, late, diverted)


def _left(ran: _Ran) -> frozenset[str]:
    """The operators of which rows are left for the next batch."""
    cut = (r.operator for each in ran.reports.values() for r in each if r.carry is not None)
    return frozenset(cut) | {file.operator for file in ran.held}


def _short_lived(operator: str, batch: int, what: str) -> str:
    """A name for a file that is there for the time of a batch."""
    return f"state/{operator}/{batch}-{what}-{uuid.uuid4().hex[:12]}"
