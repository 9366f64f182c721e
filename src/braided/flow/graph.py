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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from braided.errors import DefinitionError, UnsupportedError
from braided.flow.route import GroupingKeys
from braided.flow.stateless import Stateless
from braided.flow.step import KeyedStep
from braided.store.history.manifest import OperatorMeta

__all__ = [
    "Fed",
    "Flow",
    "Input",
    "Keyed",
    "Mapped",
    "Node",
    "Side",
    "United",
    "flow_of",
    "renamed",
]


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
    keys: GroupingKeys


@dataclass(frozen=True, eq=False)
class Keyed:
    step: KeyedStep
    sides: tuple[Side, ...]


Node = Input | Mapped | United | Fed | Keyed


def renamed(node: Node, name: str) -> Node | None:
    """A node like this one whose nearest operator upstream has another name; None without one."""
    if isinstance(node, Keyed):
        return replace(node, step=node.step.named(name))
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
    newest_only: tuple[bool, ...] = ()
    """For each end whether its sink keeps the newest row of each key, in place of those before."""
    known_as: Mapping[str, str] = field(default_factory=dict)
    """Steps that the checkpoint knows by another name than their own."""
    kept: Mapping[str, OperatorMeta] = field(default_factory=dict)
    """What the checkpoint knows of steps, by the names that it has for them."""

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
        return {
            node: self._known(self._in_mode(node, modes.get(node, set()))) for node in self.keyed
        }

    def _known(self, step: KeyedStep) -> KeyedStep:
        name = self.known_as.get(step.name, step.name)
        known = step if name == step.name else step.named(name)
        return known.as_kept(self.kept[name]) if name in self.kept else known

    def _in_mode(self, node: Keyed, modes: set[str]) -> KeyedStep:
        step = node.step
        if not step.gives_complete or not modes:
            return step
        if len(modes) > 1:
            raise DefinitionError(
                f"{step.name!r} leads to sinks with outputMode {' and '.join(sorted(modes))}; "
                "its results come in one mode"
            )
        (mode,) = modes
        return step.in_mode(mode, node in self.before_keyed)

    def parents(self, node: Node) -> tuple[Node, ...]:
        """What a node is made from in each batch."""
        if isinstance(node, Input):
            return () if node in self.roots or node.base is None else (node.base,)
        return _upstream(node)

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
    def can_split(self) -> frozenset[str]:
        """The steps of which a hot key's rows may be dealt out to several slots. What the shares of
        a key give out is then each a part of it. A sink that keeps the newest row of each key would
        take one part for the whole.
        """
        kept = [end for end, newest in zip(self.ends, self.newest_only, strict=False) if newest]

        def parents(node: Node) -> tuple[Node, ...]:
            return () if isinstance(node, Keyed) else self.parents(node)

        whole = set(_sorted(kept, parents))
        steps = {node: self.step(node) for node in self.keyed if node not in whole}
        return frozenset(step.name for step in steps.values() if step.merge_parts is not None)

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
            if step.needs_watermark:
                raise DefinitionError(
                    f"operator {step.name!r} has timeMode='EventTime', which needs "
                    "withWatermark(...) on the DataFrame before braided.stream"
                )
    for node in flow.before_keyed:
        made = node.step if isinstance(node, Mapped | Input) and flow.parents(node) else None
        if made is not None and made.nests_star:
            raise UnsupportedError(
                f"{made.method}() before another keyed operator with a * inside an expression: "
                "name the columns instead"
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
    target.step.check_feedback()
    if target.step.sides:
        raise UnsupportedError(
            f"feedback to {target.step.name!r}, which has two inputs: which one is meant is not "
            "said. Unite the streams before an operator of one input instead"
        )
    given = {each.name: each.dataType for each in fed.schema.fields}
    for wanted in target.step.input.fields:
        if given.get(wanted.name) != wanted.dataType:
            found = given.get(wanted.name)
            raise DefinitionError(
                f"feedback to {target.step.name!r}: its input has {wanted.name!r} "
                f"{wanted.dataType.simpleString()}, the rows that go back have "
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
