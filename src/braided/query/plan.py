"""The frames of one batch: a flow's graph as Spark's lazy DataFrames.

What one reader takes stays lazy, so that a chain of operators is one Spark job. What several take
is computed once, by a job of its own, and kept until the batch is over; so is what is united with
other rows, because a task knows its channel by the number of its partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braided.control.routing.table import RoutingTable
from braided.flow.graph import (
    Fed,
    Flow,
    Input,
    Keyed,
    Mapped,
    Node,
    United,
)
from braided.flow.inputs import Inputs
from braided.flow.two_sided import united_sides
from braided.orders.address import LineAddress
from braided.spark.late_rows import LateRows
from braided.spark.placed_frames import PlacedFrames
from braided.spark.sql_text import quoted
from braided.store.history.manifest import CarryFile, DeadFile, OperatorMeta
from braided.tasks.carry import read_carry, write_carry
from braided.tasks.columns import FED_SEQUENCE, FED_SEQUENCES, order_columns
from braided.tasks.diverted import json_of, write_late
from braided.tasks.key_pairs import PairSetting
from braided.tasks.spec import BATCH_PROPERTY, BatchSpec
from braided.tasks.stage import KeyedStage, StageInput, StageSetting
from braided.tasks.state_location import StateLocation

__all__ = ["BatchFrames", "FlowPlan"]


@dataclass(frozen=True)
class _Rows:
    """A node's rows in a batch."""

    df: DataFrame
    order: int
    """How many order columns they have, or will."""
    admitted: list[str] = field(default_factory=list)
    """SQL for order columns that are not there yet; an operator adds them on its own way."""

    def with_order(self) -> DataFrame:
        return self.df.selectExpr(*self.admitted, "*") if self.admitted else self.df

    def without_order(self) -> DataFrame:
        if self.admitted or not self.order:
            return self.df
        return self.df.drop(*order_columns(self.order))


class FlowPlan:
    """What is the same for all batches of a flow."""

    def __init__(
        self,
        flow: Flow,
        inputs: Inputs,
        metas: Mapping[str, OperatorMeta],
        ordered: bool,
        location: StateLocation,
        reports: Accumulator[list[bytes]],
        divert: bool,
        placed: PlacedFrames | None = None,
        line: LineAddress | None = None,
        divert_late: bool = False,
        pairs: Mapping[str, PairSetting] | None = None,
    ) -> None:
        self.flow = flow
        self.divert_late = divert_late
        self.inputs = inputs
        self.ordered = ordered
        self.location = location
        self.order: dict[Node, int] = {}
        self.stages: dict[Node, KeyedStage] = {}
        for node in flow.nodes:
            before = [self.order[parent] for parent in flow.parents(node)]
            if isinstance(node, Keyed):
                count = before[0] if len(before) == 1 else max(before) + 1
                step = flow.step(node)
                meta = metas[step.name]
                counted = (pairs or {}).get(step.name)
                setting = StageSetting(
                    meta, count, location, reports, divert, placed, line, counted
                )
                self.stages[node] = step.stage(setting)
                self.order[node] = count + 1
            elif isinstance(node, United):
                self.order[node] = max(before) + 1
            elif not before:
                self.order[node] = inputs.order
            else:
                made = node.step if isinstance(node, Mapped | Input) else None
                self.order[node] = before[0] if made is None else made.order(before[0])
        self.late_rows = {
            node: LateRows(flow.roots[0].source.sparkSession)
            for node in flow.keyed
            if node.step.drops_late_rows and any(_late(side.node) for side in node.sides)
        }
        self.computed_once = _computed_once(flow)
        if divert_late:
            # Who looks at rows again, for those that were late, must not have tasks run again.
            sides = [side.node for node in flow.keyed for side in node.sides]
            self.computed_once |= {node for node in sides if not isinstance(node, Input)}
        self.first_operators = _first_operators(flow)
        self.holding = [node for node in self.first_operators if self.stages[node].takes_carry]
        """Those whose rows can be left for the next batch before they are looked at."""


def _computed_once(flow: Flow) -> frozenset[Node]:
    """What is computed by a job of its own and kept for its readers."""
    nodes = {node for node, readers in flow.readers.items() if readers > 1}
    for node in flow.nodes:
        if len(flow.parents(node)) > 1:
            nodes.update(p for p in flow.parents(node) if not isinstance(p, Input))
    return frozenset(nodes)


def _first_operators(flow: Flow) -> tuple[Keyed, ...]:
    """Those that take in what sources give out, with stateless steps at most on the way."""

    def is_behind_keyed(node: Node) -> bool:
        return isinstance(node, Keyed) or any(map(is_behind_keyed, flow.parents(node)))

    return tuple(node for node in flow.keyed if not any(map(is_behind_keyed, flow.parents(node))))


class BatchFrames:
    """The frames of one try of a batch. `run` computes a frame at once, where that has to be;
    without it nothing is computed early, and each of several readers computes what they share.
    `close` lets go of what was kept.
    """

    def __init__(
        self,
        plan: FlowPlan,
        df: DataFrame,
        spec: BatchSpec,
        tables: Mapping[str, RoutingTable],
        carry: tuple[CarryFile, ...],
        run: Callable[[DataFrame], None] | None,
    ) -> None:
        self._plan = plan
        self._spec = spec
        self._tables = tables
        self._carry = carry
        self._run = run
        self._kept: list[DataFrame] = []
        self._held: dict[Keyed, DataFrame] = {}
        for late in plan.late_rows.values():
            late.begin()
        self._frames: dict[Node, _Rows] = {}
        df.sparkSession.sparkContext.setLocalProperty(BATCH_PROPERTY, spec.encode())
        if len(plan.flow.roots) > 1:
            df = self._compute_once(df)
        self._roots = plan.inputs.parted(df)

    def close(self) -> None:
        for df in self._kept:
            df.unpersist()

    def output(self, end: Node) -> DataFrame:
        """What a sink gets."""
        rows = self._rows(end)
        if not self._plan.ordered:
            return rows.without_order()
        names = order_columns(rows.order)
        whole = rows.df.repartition(1).sortWithinPartitions(*names)
        return whole.drop(*names)

    def counted(self, node: Keyed) -> DataFrame:
        """The slots of an operator, and how many rows are on their way to each."""
        frame, _ = self._arriving(node)
        table = self._tables[self._plan.flow.step(node).name]
        return self._plan.stages[node].counted(frame, table)

    def late_letters(self, late: Mapping[str, int]) -> tuple[DeadFile, ...]:
        """Writes the late rows of operators that have had some, where they are to be kept."""
        files: list[DeadFile] = []
        for node in self._plan.flow.keyed if self._plan.divert_late else ():
            name = self._plan.flow.step(node).name
            counted = self._plan.late_rows.get(node)
            if late.get(name) or (counted is not None and counted.is_unknown):
                watermark_ms = self._late_watermark_ms(node)
                store = self._plan.location.store
                for frame in self._late_rows(node, watermark_ms):
                    files += write_late(frame, store, name, self._spec.batch, watermark_ms)
        return tuple(files)

    def _late_rows(self, node: Keyed, watermark_ms: int) -> list[DataFrame]:
        """What an operator drops, as `key` and `row`."""
        step = self._plan.flow.step(node)
        if node not in self._plan.late_rows:
            frame, _ = self._arriving(node)
            dropped = self._plan.stages[node].late(frame, watermark_ms)
            return [] if dropped is None else [dropped]
        frames = []
        for side in node.sides:
            keep = _late(side.node)
            if keep is None:
                continue
            rows = self._rows(side.node).without_order()
            names = step.key_schema.names
            known = all(name in rows.columns for name in names)
            key = json_of(*map(F.col, map(quoted, names))) if known else F.lit(None).cast("string")
            row = json_of(*map(F.col, map(quoted, rows.columns)))
            dropped = rows.filter(~F.expr(keep(watermark_ms)))
            frames.append(dropped.select(key.alias("key"), row.alias("row")))
        return frames

    def _late_watermark_ms(self, node: Keyed) -> int:
        """By which watermark rows are late for an operator."""
        name = self._plan.flow.step(node).name
        return self._spec.behind.get(name, self._spec.late_watermark_ms)

    def late(self) -> dict[str, int]:
        """How many rows each operator did not get because they were late, once all has run."""
        late = self._plan.late_rows.items()
        return {self._plan.flow.step(node).name: rows.count for node, rows in late}

    def fed_back(self, attempt: str) -> list[CarryFile]:
        """Writes the rows that operators send back to be there in the next batch."""
        files = []
        for number, (fed, target) in enumerate(self._plan.flow.feeds):
            rows = self._rows(fed.parent)
            stage = self._plan.stages[target]
            names = order_columns(rows.order)
            # One order for all, whatever the channels: one partition, sorted.
            back = rows.df.filter(fed.back).repartition(1).sortWithinPartitions(*names)
            first = FED_SEQUENCE + number * FED_SEQUENCES
            sequence = f"monotonically_increasing_id() + bigint('{first}')"
            order = ["bigint(0)", sequence, *["bigint(0)"] * stage.order]
            renumbered = [
                f"{sql} AS {name}"
                for sql, name in zip(order, order_columns(stage.order), strict=False)
            ]
            receiver = self._plan.flow.step(target)
            own = [quoted(name) for name in receiver.input.names]
            frame = back.selectExpr(*renumbered, *own)
            name = f"carry/{attempt}-{number}.arrow"
            files += write_carry(frame, self._plan.location.store, name, receiver.name)
        return files

    def held_back(self, attempt: str) -> list[CarryFile]:
        """Writes the rows that are new to the query, where they are left for the next batch."""
        files = []
        for number, (node, frame) in enumerate(self._held.items()):
            # They have order columns, by which the next batch sorts them: it may be much that has
            # piled up, and output waits for it.
            rows = frame.coalesce(frame.sparkSession.sparkContext.defaultParallelism)
            name = f"carry/{attempt}-held-{number}.arrow"
            receiver = self._plan.flow.step(node).name
            files += write_carry(rows, self._plan.location.store, name, receiver)
        return files

    # -- rows of a node --------------------------------------------------------------------

    def _rows(self, node: Node) -> _Rows:
        if node not in self._frames:
            made = self._make(node)
            if node in self._plan.computed_once:
                made = _Rows(self._compute_once(made.with_order()), made.order)
            self._frames[node] = made
        return self._frames[node]

    def _compute_once(self, df: DataFrame) -> DataFrame:
        # What was counted before is kept already.
        if self._run is None or df.is_cached:
            return df
        self._kept.append(df.persist())
        self._run(df)
        return df

    def _make(self, node: Node) -> _Rows:
        if isinstance(node, Keyed):
            return self._keyed(node)
        if isinstance(node, United):
            return self._united(node)
        if isinstance(node, Fed):
            rows = self._rows(node.parent)
            stays = F.coalesce(~node.back, F.lit(True))
            return _Rows(rows.df.filter(stays), rows.order)
        parents = self._plan.flow.parents(node)
        if not parents:
            assert isinstance(node, Input)
            df, admitted = self._roots[node]
            return _Rows(df, self._plan.inputs.order, admitted)
        rows, step = self._rows(parents[0]), node.step
        assert step is not None
        if node not in self._plan.flow.before_keyed and not self._plan.ordered:
            return _Rows(step.apply(rows.without_order()), 0)
        return _Rows(step.apply(rows.with_order(), rows.order), step.order(rows.order))

    def _united(self, node: United) -> _Rows:
        """The rows of all parents; those of the same order, in the order of the parents."""
        rows = [self._rows(parent) for parent in node.parents]
        if node not in self._plan.flow.before_keyed and not self._plan.ordered:
            frames = [each.without_order() for each in rows]
            order = 0
        else:
            order = max(each.order for each in rows) + 1
            frames = [_lengthened(each, order, number) for number, each in enumerate(rows)]
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.union(frame)
        return _Rows(whole, order)

    def _keyed(self, node: Keyed) -> _Rows:
        plan, step, stage = self._plan, self._plan.flow.step(node), self._plan.stages[node]
        frame, admitted = self._arriving(node)
        keep = plan.ordered or node in plan.flow.before_keyed
        table = self._tables[step.name]
        applied = stage.apply(StageInput(frame, table, admitted, bool(self._carry), keep))
        return _Rows(applied, stage.order + 1 if keep else 0)

    def _arriving(self, node: Keyed) -> tuple[DataFrame, list[str]]:
        """What an operator takes in, carried rows included, and SQL for order columns that the rows
        do not have yet.
        """
        plan, step = self._plan, self._plan.flow.step(node)
        rows = self._input(node)
        frame, admitted = rows.df, rows.admitted
        carried = [file for file in self._carry if file.operator == step.name]
        holds = self._spec.holds_input and node in plan.holding
        if carried or holds or not admitted:
            # A task knows its columns by their position.
            own = map(quoted, step.input.names)
            frame = rows.with_order().selectExpr(*order_columns(rows.order), *own)
            admitted = []
        if carried or holds:
            rest = read_carry(frame.sparkSession, plan.location.store, carried, frame.schema)
            if holds:
                self._held[node] = frame
                return rest, admitted
            # In this order: a task of the operator before knows its channel by its partition.
            frame = frame.union(rest)
        return frame, admitted

    def _input(self, node: Keyed) -> _Rows:
        if len(node.sides) == 1:
            return self._punctual(node, node.sides[0].node)
        sides = []
        order = self._plan.stages[node].order
        for number, side in enumerate(node.sides):
            rows = self._punctual(node, side.node)
            sides.append(_lengthened(rows, order, number))
        return _Rows(united_sides(node, sides, order), order)

    def _punctual(self, node: Keyed, parent: Node) -> _Rows:
        """A parent's rows without those that are late."""
        rows = self._rows(parent)
        late, late_ms = _late(parent), self._late_watermark_ms(node)
        if late is None or not node.step.drops_late_rows or late_ms <= 0:
            return rows
        kept = self._plan.late_rows[node].dropped(rows.df, late(late_ms))
        return _Rows(kept, rows.order, rows.admitted)


def _late(node: Node) -> Callable[[int], str] | None:
    """What keeps a node's rows that are not late; None if their time is not known."""
    if isinstance(node, Input):
        return node.late
    if isinstance(node, Fed):
        return _late(node.parent)
    return node.step.late_output if isinstance(node, Keyed) else None


def _lengthened(rows: _Rows, order: int, last: int) -> DataFrame:
    """Rows with so many order columns, of which the last is given and those between are 0."""
    names = order_columns(order)
    more = [f"bigint(0) AS {name}" for name in names[rows.order : -1]]
    own = [quoted(name) for name in rows.without_order().columns]
    frame = rows.with_order()
    return frame.selectExpr(*names[: rows.order], *more, f"bigint({last}) AS {names[-1]}", *own)
