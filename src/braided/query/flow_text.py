"""A flow in words: sources, steps, operators with channels and slots, sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braided.control.routing.table import RoutingTable
from braided.flow.graph import Fed, Flow, Input, Keyed, Mapped, Node, United

__all__ = ["flow_text"]


def flow_text(flow: Flow, tables: Mapping[str, RoutingTable], sinks: Sequence[str]) -> str:
    """A line for each part of a flow, upstream first, with the numbers of those before it."""
    numbers = {node: i for i, node in enumerate(flow.nodes, start=1)}
    lines = ["== Flow =="]
    for node, number in numbers.items():
        before = ", ".join(str(numbers[parent]) for parent in flow.parents(node))
        origin = f" <- {before}" if before else ""
        lines.append(f"({number}) {_words(node, flow, tables)}{origin}")
    for fed, target in flow.feeds:
        name = flow.step(target).name
        lines.append(f"    rows of ({numbers[fed]}) go back to {name!r} with the next batch")
    for end, sink in zip(flow.ends, sinks, strict=True):
        lines.append(f"    sink {sink} <- {numbers[end]}")
    return "\n".join(lines)


def _words(node: Node, flow: Flow, tables: Mapping[str, RoutingTable]) -> str:
    if isinstance(node, Keyed):
        step = flow.step(node)
        table = tables[step.name]
        keys = ", ".join(step.key_schema.names)
        pins = f", {len(table.pins)} keys pinned" if table.pins else ""
        return (
            f"operator {step.name!r} by {keys}: {table.channels} channels, "
            f"{table.slots.size} slots, epoch {table.epoch}{pins}"
        )
    if isinstance(node, United):
        return "union"
    if isinstance(node, Fed):
        return "feedback"
    if isinstance(node, Mapped) or flow.parents(node):
        return "step" if node.step is None else node.step.method
    assert isinstance(node, Input)
    return f"source {node.source.schema.simpleString()}"
