"""A flow: inputs, keyed operators, the stateless steps between them, and where rows part and meet.

A flow is a graph of nodes that know what is upstream of them. A node is itself and nothing else
(two filters that read alike are two nodes), so what several streams have in common is what they
were made from:

    Input       rows of a streaming DataFrame; remembers the Input it was made from
    Mapped      a stateless step
    United      the rows of several nodes
    Fed         an operator's rows without those that go back to an operator
    Keyed       a stateful operator over one input, or two

`flow_of` takes the ends of a flow, one for each sink, and finds the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyspark import Broadcast
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from braided.errors import DefinitionError, UnsupportedError
from braided.flow.route import Keys
from braided.flow.stateless import Stateless
from braided.kinds.aggregate.aggregation import Aggregation
from braided.kinds.processor.handle import Schemas
from braided.kinds.processor.output import PandasSettings
from braided.operator.definition import Operator, state_codec
from braided.store.aggregates.columns import COLUMNS
from braided.store.variables.declared import VARIABLES, Declared

__all__ = [
    "AggregateStep",
    "Fed",
    "Flow",
    "InitialRows",
    "Input",
    "Keyed",
    "KeyedStep",
    "Mapped",
    "Node",
    "OperatorStep",
    "ProcessorStep",
    "Side",
    "United",
    "flow_of",
    "renamed",
]


@dataclass(frozen=True)
class OperatorStep:
    """What a keyed, stateful step is, wherever it stands in a flow."""

    name: str
    operator: type[Operator]
    key_schema: StructType
    keys: Keys
    input: StructType
    """The rows that reach its tasks; of two inputs, the columns of both."""
    output: StructType
    time_mode: str
    sides: tuple[StructType, ...] = ()
    """The rows of each input, where there are two."""
    initial: DataFrame | None = None
    """The state that it starts with, where the checkpoint has none of it."""

    @property
    def label(self) -> str:
        return self.operator.__name__

    @property
    def arriving(self) -> StructType:
        """The columns of the rows that its tasks get."""
        return self.input

    @property
    def state(self) -> str:
        """The fields of its state, as a checkpoint records them."""
        return state_codec(self.operator).describe()

    @property
    def codec(self) -> str:
        """The encoding of its state, as a checkpoint records it."""
        return "msgpack-1"

    @property
    def fires(self) -> bool:
        """Whether timers of its state lead to work."""
        return hasattr(self.operator, "onTimer")

    @property
    def drops_late_rows(self) -> bool:
        """Whether rows behind the watermark are dropped before they reach it."""
        return self.time_mode == "EventTime"


@dataclass(frozen=True)
class AggregateStep:
    """What a keyed aggregation is, wherever it stands in a flow."""

    name: str
    aggregation: Aggregation
    input: StructType
    mode: str = "append"
    """Spark's output mode."""
    drops_late_rows: bool = False
    """Never: what is late goes by the window and not by the row."""

    @property
    def label(self) -> str:
        return "agg"

    @property
    def arriving(self) -> StructType:
        fields = self.aggregation.columns.fields
        # A window is two columns as far as its width goes.
        inner = [f.dataType.fields if isinstance(f.dataType, StructType) else [f] for f in fields]
        return StructType([field for columns in inner for field in columns])

    @property
    def key_schema(self) -> StructType:
        return self.aggregation.key

    @property
    def output(self) -> StructType:
        return self.aggregation.output

    @property
    def time_mode(self) -> str:
        return "ProcessingTime" if self.aggregation.event_time is None else "EventTime"

    @property
    def state(self) -> str:
        aggregation = self.aggregation
        partials = aggregation.columns.fields[len(aggregation.groups) :]
        rules = [part.rule for part in aggregation.parts for _ in range(part.columns)]
        kept = zip(aggregation.labels, rules, partials, strict=True)
        return json.dumps([[label, rule, f.dataType.simpleString()] for label, rule, f in kept])

    @property
    def codec(self) -> str:
        return COLUMNS

    @property
    def fires(self) -> bool:
        return self.time_mode == "EventTime" and self.mode != "complete"


@dataclass(frozen=True)
class InitialRows:
    """Rows that a processor makes its first state of, before its first batch."""

    df: DataFrame
    keys: tuple[str, ...]
    """The grouping columns, in the order of the processor's."""


@dataclass(frozen=True)
class ProcessorStep:
    """What a StatefulProcessor is, wherever it stands in a flow."""

    name: str
    processor: bytes
    """Pickled."""
    label: str
    declared: Declared
    key_schema: StructType
    keys: Keys
    input: StructType
    output: StructType
    time_mode: str
    pandas: bool
    settings: PandasSettings
    schemas: Schemas
    broadcasts: tuple[Broadcast[Any], ...] = ()
    exact_frames: bool = False
    event_time: str = ""
    """The output column that has the event time of what comes after."""
    initial: InitialRows | None = None
    """What it starts with, where the checkpoint has no state of it."""
    sides: tuple[StructType, ...] = ()

    @property
    def arriving(self) -> StructType:
        return self.input

    @property
    def state(self) -> str:
        return self.declared.numbered().describe()

    @property
    def codec(self) -> str:
        return VARIABLES

    @property
    def fires(self) -> bool:
        return self.time_mode != "None"

    @property
    def drops_late_rows(self) -> bool:
        return self.time_mode == "EventTime"


KeyedStep = OperatorStep | AggregateStep | ProcessorStep


@dataclass(frozen=True, eq=False)
class Input:
    source: DataFrame
    base: Input | None = None
    step: Stateless | None = None
    """What made it from its base."""
    late: Callable[[int], str] | None = None
    """SQL that keeps the rows that are not late, given the watermark in ms; None without one."""

    @cached_property
    def line(self) -> tuple[Input, ...]:
        """From the DataFrame that the user gave to this one."""
        return (*self.base.line, self) if self.base is not None else (self,)


@dataclass(frozen=True, eq=False)
class Mapped:
    parent: Node
    step: Stateless


@dataclass(frozen=True, eq=False)
class United:
    parents: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Fed:
    parent: Node
    back: Column
    """Which rows go back; the others go on."""
    schema: StructType
    to: str | None
    """The operator that they go back to; None for the one they come from."""


@dataclass(frozen=True)
class Side:
    """One input of an operator, and its grouping columns."""

    node: Node
    keys: Keys


@dataclass(frozen=True, eq=False)
class Keyed:
    step: KeyedStep
    sides: tuple[Side, ...]


Node = Input | Mapped | United | Fed | Keyed


def renamed(node: Node, name: str) -> Node | None:
    """A node like this one whose nearest operator upstream has another name; None without one."""
    if isinstance(node, Keyed):
        return replace(node, step=replace(node.step, name=name))
    if isinstance(node, Mapped | Fed):
        parent = renamed(node.parent, name)
        return None if parent is None else replace(node, parent=parent)
    return None


@dataclass(frozen=True, eq=False)
class Flow:
    """What a query runs."""

    ends: tuple[Node, ...]
    """What each sink gets."""
    roots: tuple[Input, ...]
    """The inputs as Spark reads them; other inputs are made from these batch by batch."""
    keyed: tuple[Keyed, ...]
    """Upstream first."""
    feeds: tuple[tuple[Fed, Keyed], ...]
    """Rows that go back, and where to."""
    modes: tuple[str, ...] = ()
    """Spark's output mode for each end."""

    @property
    def steps(self) -> tuple[KeyedStep, ...]:
        return tuple(map(self.step, self.keyed))

    def step(self, node: Keyed) -> KeyedStep:
        """What a node does, in the output mode of the sinks that it leads to."""
        return self._steps[node]

    @cached_property
    def _steps(self) -> dict[Keyed, KeyedStep]:
        modes: dict[Node, set[str]] = {}
        for end, mode in zip(self.ends, self.modes, strict=False):
            for node in _sorted([end], self.parents):
                modes.setdefault(node, set()).add(mode)
        return {node: self._in_mode(node, modes.get(node, set())) for node in self.keyed}

    def _in_mode(self, node: Keyed, modes: set[str]) -> KeyedStep:
        step = node.step
        if not isinstance(step, AggregateStep) or not modes:
            return step
        if len(modes) > 1:
            raise DefinitionError(
                f"{step.name!r} leads to sinks with outputMode {' and '.join(sorted(modes))}; "
                "its results come in one mode"
            )
        (mode,) = modes
        if mode == "append" and step.aggregation.event_time is None:
            raise UnsupportedError(
                f"outputMode('append') gives out a result of {step.name!r} when it can't "
                "change any more, which only a watermark tells: use withWatermark and group "
                "by a window of that column, or outputMode('update')"
            )
        if mode == "complete" and node in self.before_keyed:
            raise UnsupportedError(
                f"outputMode('complete') with a keyed step after {step.name!r}: it would get "
                "all results anew in every batch. Use 'update'"
            )
        return replace(step, mode=mode)

    def parents(self, node: Node) -> tuple[Node, ...]:
        """What a node is made from in each batch."""
        if isinstance(node, Input):
            return () if node in self.roots or node.base is None else (node.base,)
        if isinstance(node, Keyed):
            return tuple(side.node for side in node.sides)
        return node.parents if isinstance(node, United) else (node.parent,)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Upstream first."""
        return tuple(_sorted(self.ends, self.parents))

    @cached_property
    def readers(self) -> dict[Node, int]:
        """How often each node is read in a batch."""
        found = dict.fromkeys(self.nodes, 0)
        for node in self.nodes:
            for parent in self.parents(node):
                found[parent] += 1
        for end in self.ends:
            found[end] += 1
        for fed, _ in self.feeds:
            found[fed.parent] += 1
        return found

    @cached_property
    def before_keyed(self) -> frozenset[Node]:
        """Nodes whose rows reach an operator, now or in the next batch."""
        found: set[Node] = {fed.parent for fed, _ in self.feeds}
        for node in reversed(self.nodes):
            if isinstance(node, Keyed) or node in found:
                found.update(self.parents(node))
        return frozenset(found)

    def check_order_survives(self) -> None:
        """Refuses steps after which the order of input is lost."""
        for node in self.nodes:
            if isinstance(node, Mapped) and node.step.is_opaque:
                above = node.parent
                while isinstance(above, Mapped | Fed):
                    above = above.parent
                where = f" {above.step.name!r}" if isinstance(above, Keyed) else "s"
                raise UnsupportedError(
                    f"{node.step.method}() after operator{where} with braided.orderPreserving: "
                    "what the function gives out has no order any more. Do it in the operator, "
                    "or before it"
                )


def flow_of(ends: Iterable[Node], modes: Iterable[str] = ()) -> Flow:
    """The flow that ends there, with an output mode for each end."""
    ends = tuple(ends)
    everything = _sorted(ends, _upstream)
    keyed = tuple(node for node in everything if isinstance(node, Keyed))
    _check_names([node.step.name for node in keyed])
    inputs = [node for node in everything if isinstance(node, Input)]
    flow = Flow(ends, _roots(inputs), keyed, (), tuple(modes))
    feeds = tuple((node, _target(node, flow)) for node in flow.nodes if isinstance(node, Fed))
    flow = replace(flow, feeds=feeds)
    if not any(node.late for node in inputs):
        for step in flow.steps:
            # Spark lets a processor run without: its watermark is then 0 for ever.
            if step.time_mode == "EventTime" and not isinstance(step, ProcessorStep):
                raise DefinitionError(
                    f"operator {step.name!r} has timeMode='EventTime', which needs "
                    "withWatermark(...) on the DataFrame before braided.stream"
                )
    for node in flow.before_keyed:
        made = node.step if isinstance(node, Mapped | Input) and flow.parents(node) else None
        if made is not None and made.nests_star:
            raise UnsupportedError(
                f"{made.method}() before another keyed operator with a * inside an "
                "expression: name the columns instead"
            )
    return flow


def _upstream(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Input):
        return ()
    if isinstance(node, Keyed):
        return tuple(side.node for side in node.sides)
    return node.parents if isinstance(node, United) else (node.parent,)


def _sorted(ends: Iterable[Node], parents: Callable[[Node], tuple[Node, ...]]) -> list[Node]:
    found: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node not in found:
            for parent in parents(node):
                visit(parent)
            found[node] = None

    for end in ends:
        visit(end)
    return list(found)


def _check_names(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise DefinitionError(
                f"two operators are called {name!r}; tell them apart with .name(...)"
            )


def _roots(inputs: list[Input]) -> tuple[Input, ...]:
    """For each DataFrame that was given, the last Input that all made from it have in common."""
    families: dict[Input, list[Input]] = {}
    for node in inputs:
        families.setdefault(node.line[0], []).append(node)
    roots = []
    for family in families.values():
        common = [
            generation[0]
            for generation in zip(*[node.line for node in family], strict=False)
            if len(set(generation)) == 1
        ]
        root = common[-1]
        for node in family:
            for made in node.line[len(root.line) :]:
                assert made.step is not None
                _check_rowwise(made.step)
        roots.append(root)
    return tuple(roots)


_ROWWISE = frozenset(
    {"select", "selectExpr", "filter", "where", "withColumn", "withColumns", "hint"}
    | {"withColumnRenamed", "withColumnsRenamed", "drop", "toDF", "join", "crossJoin"}
    | {"fillna", "dropna", "replace"}
)


def _check_rowwise(step: Stateless) -> None:
    other = step.kwargs.get("other", step.args[0] if step.args else None)
    streaming = step.method in ("join", "crossJoin") and getattr(other, "isStreaming", False)
    if step.method not in _ROWWISE or streaming:
        raise UnsupportedError(
            f"{step.method}() on one branch of a stream that parts before its first operator: "
            "put it before the branches part, or start the branches as queries of their own"
        )


def _target(fed: Fed, flow: Flow) -> Keyed:
    target = _addressee(fed, flow)
    if isinstance(target.step, AggregateStep):
        raise UnsupportedError(
            f"feedback to the aggregation {target.step.name!r}: it would never end; feed an "
            "Operator"
        )
    if target.step.sides:
        raise UnsupportedError(
            f"feedback to {target.step.name!r}, which has two inputs: which one is meant is not "
            "said. Unite the streams before an operator of one input instead"
        )
    given = {field.name: field.dataType for field in fed.schema.fields}
    for field in target.step.input.fields:
        if given.get(field.name) != field.dataType:
            found = given.get(field.name)
            raise DefinitionError(
                f"feedback to {target.step.name!r}: its input has {field.name!r} "
                f"{field.dataType.simpleString()}, the rows that go back have "
                f"{'no such column' if found is None else found.simpleString()}"
            )
    return target


def _addressee(fed: Fed, flow: Flow) -> Keyed:
    node: Node = fed.parent
    while isinstance(node, Mapped | Fed):
        node = node.parent
    if fed.to is None:
        if isinstance(node, Keyed):
            return node
        raise DefinitionError("feedback() goes after an operator, or names one with to=")
    for keyed in flow.keyed:
        if keyed.step.name == fed.to:
            return keyed
    names = ", ".join(repr(step.name) for step in flow.steps)
    raise DefinitionError(f"feedback(to={fed.to!r}): the flow has {names}")
