"""Operators of flows that part and meet, in a module that workers can import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import braided


class Total(braided.Operator):
    total: int = 0

    def onRow(self, row: Any) -> Iterator[Any]:
        self.total += row.v
        yield row.k, self.total


class Match(braided.Operator):
    """Joins left and right rows of a key by value, in whatever order they come."""

    left: dict[int, int] = {}  # noqa: RUF012
    right: dict[int, int] = {}  # noqa: RUF012

    def onLeft(self, row: Any) -> Iterator[Any]:
        self.left[row.v] = self.left.get(row.v, 0) + 1
        for _ in range(self.right.get(row.v, 0)):
            yield self.key.k, row.v, "left"

    def onRight(self, row: Any) -> Iterator[Any]:
        self.right[row.w] = self.right.get(row.w, 0) + 1
        for _ in range(self.left.get(row.w, 0)):
            yield {"k": self.key.k, "v": row.w, "last": "right"}


class Component(braided.Operator):
    """The smallest number that a node has heard of, told on to its neighbours."""

    neighbours: set[int] = set()  # noqa: RUF012
    lowest: int = 1 << 60

    def onRow(self, row: Any) -> Iterator[Any]:
        if row.neighbour is not None:
            self.neighbours.add(row.neighbour)
            yield {"node": row.neighbour, "label": min(self.lowest, self.key.node)}
        heard = min(self.key.node, self.lowest if row.label is None else row.label)
        if heard < self.lowest:
            self.lowest = heard
            for neighbour in sorted(self.neighbours):
                yield {"node": neighbour, "label": heard}
            yield {"node": self.key.node, "component": heard}
