"""What is counted of pairs of keys: for which operators, and of which columns of their output.

An operator counts pairs if another reads its output by keys that are columns of it: directly, or
through steps that pass these columns on as they are, which Spark's own analysis tells. Where a key
is computed on the way, or comes out of a function that Spark can't look into, nothing is counted,
and the two operators are routed by hash as ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession

from braided.flow.graph import Fed, Flow, Keyed, Mapped, Node, United
from braided.options import Options
from braided.spark.arrow_types import to_arrow_schema
from braided.spark.column_lineage import kept_columns
from braided.tasks.key_pairs import PairSetting, PairTarget, can_be_counted

__all__ = ["pair_settings", "pair_targets"]


def pair_settings(flow: Flow, spark: SparkSession, options: Options) -> dict[str, PairSetting]:
    """What each operator counts, by its name; nothing where locality is not asked for, or where all
    is one host.
    """
    is_alone = (spark.sparkContext.master or "local").startswith(
        "local"
    ) and options.locality == "auto"
    if options.locality == "off" or is_alone:
        return {}
    return {
        name: PairSetting(targets, options.locality_every, options.locality_memory_bytes)
        for name, targets in pair_targets(flow, spark).items()
    }


def pair_targets(flow: Flow, spark: SparkSession) -> dict[str, tuple[PairTarget, ...]]:
    """The operators that read the output of each, with the columns of it that are their keys."""
    frames = _Frames(flow, spark)
    found: dict[str, list[PairTarget]] = {}
    for node in flow.keyed:
        step = flow.step(node)
        schema = to_arrow_schema(step.key_schema)
        if not step.can_be_pinned or not can_be_counted(schema):
            continue
        for side in node.sides:
            names = [column for column in side.keys.columns if isinstance(column, str)]
            if set(names) != set(step.key_schema.names) or len(names) != len(side.keys.columns):
                continue
            for upstream, columns in frames.origins(side.node, tuple(step.key_schema.names)):
                before = flow.step(upstream)
                if before.can_be_pinned and before.counts_pairs:
                    places = tuple(map(before.output.names.index, columns))
                    found.setdefault(before.name, []).append(PairTarget(step.name, places, schema))
    return {name: tuple(targets) for name, targets in found.items()}


class _Frames:
    """Empty frames of what nodes give out, to ask Spark about."""

    def __init__(self, flow: Flow, spark: SparkSession) -> None:
        self._flow = flow
        self._spark = spark
        self._made: dict[Node, DataFrame] = {}

    def origins(
        self, node: Node, names: tuple[str, ...]
    ) -> Iterator[tuple[Keyed, tuple[str, ...]]]:
        """The operators that columns of a node come from unchanged, and what they are there."""
        if isinstance(node, Keyed):
            if set(names) <= set(self._flow.step(node).output.names):
                yield node, names
        elif isinstance(node, Fed):
            yield from self.origins(node.parent, names)
        elif isinstance(node, Mapped) and self._is_behind_keyed(node):
            kept = self._kept(node)
            if all(name in kept for name in names):
                yield from self.origins(node.parent, tuple(kept[name] for name in names))
        elif isinstance(node, United) and self._is_behind_keyed(node):
            columns = self._frame(node).columns
            for parent in node.parents:
                if self._is_behind_keyed(parent):
                    # A union goes by position.
                    there = self._frame(parent).columns
                    yield from self.origins(
                        parent, tuple(there[columns.index(name)] for name in names)
                    )

    def _is_behind_keyed(self, node: Node) -> bool:
        """Whether all of its rows come from operators."""
        if isinstance(node, Keyed):
            return True
        parents = self._flow.parents(node)
        return bool(parents) and all(map(self._is_behind_keyed, parents))

    def _kept(self, node: Mapped) -> Mapping[str, str]:
        return kept_columns(self._frame(node.parent), self._frame(node))

    def _frame(self, node: Node) -> DataFrame:
        if node not in self._made:
            self._made[node] = self._make(node)
        return self._made[node]

    def _make(self, node: Node) -> DataFrame:
        if isinstance(node, Keyed):
            return self._spark.createDataFrame([], self._flow.step(node).output)
        if isinstance(node, Mapped):
            return node.step.apply(self._frame(node.parent))
        if isinstance(node, United):
            first, *others = map(self._frame, node.parents)
            for other in others:
                first = first.union(other)
            return first
        assert isinstance(node, Fed)
        return self._frame(node.parent)
