"""Which operators of a flow take in what others give out."""

from __future__ import annotations

from collections.abc import Mapping

from braided.flow.graph import Flow, Keyed, Node

__all__ = ["ancestors_of", "upstream_of"]


def upstream_of(flow: Flow) -> Mapping[str, tuple[str, ...]]:
    """The operators whose output an operator takes in, by name; none where a source feeds it."""

    def nearest(node: Node) -> list[str]:
        if isinstance(node, Keyed):
            return [flow.step(node).name]
        return [name for parent in flow.parents(node) for name in nearest(parent)]

    return {
        flow.step(node).name: tuple(
            dict.fromkeys(name for side in node.sides for name in nearest(side.node))
        )
        for node in flow.keyed
    }


def ancestors_of(flow: Flow) -> Mapping[str, frozenset[str]]:
    """The operators that an operator's input comes through, however far up."""
    upstream = upstream_of(flow)

    def above(name: str) -> frozenset[str]:
        return frozenset(upstream[name]).union(*map(above, upstream[name]))

    return {name: above(name) for name in upstream}
