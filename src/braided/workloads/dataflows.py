"""The five dataflows of Shukla and Simmhan, of tasks that wait for every row and pass it on.

A task is a keyed operator. One row comes out for each that comes in; where a flow parts, every
branch gets all rows, and a task gets those of all tasks before it. `instances` is what the paper
counts: one for each time that the rows of the source pass a task.

Linear, Diamond and Star are as figure 4 and table 1 of the paper have them. Of Grid (15 tasks, 21
instances, four rows at the sink for each of the source) and Traffic (11 tasks, 13 instances) the
text says no more than that, so theirs are reconstructions with those numbers, not the originals.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import braided

__all__ = ["DATAFLOWS", "ROWS", "SOURCE", "Dataflow", "Waits"]

SOURCE = "source"
ROWS = "id long, k long, path string, n long"
"""What goes along the edges: `path` is the tasks passed, `n` the rows of the key at the last."""


class Waits(braided.Operator):
    """A task: waits, counts the row, signs it and passes it on."""

    task: braided.Param[str] = ""
    wait_s: braided.Param[float] = 0.0
    seen: int = 0

    def onRow(self, row: Any) -> Iterator[tuple[int, int, str, int]]:
        time.sleep(self.wait_s)
        self.seen += 1
        yield row.id, row.k, f"{row.path}/{self.task}", self.seen


@dataclass(frozen=True)
class Dataflow:
    """Tasks with those that they get rows from, in an order in which those come first."""

    name: str
    tasks: Mapping[str, tuple[str, ...]]
    is_reconstruction: bool = False

    @property
    def last(self) -> list[str]:
        """The tasks before the sink: those that nobody else gets rows from."""
        read = {before for befores in self.tasks.values() for before in befores}
        return [task for task in self.tasks if task not in read]

    @property
    def instances(self) -> int:
        return sum(len(self.paths(task)) for task in self.tasks)

    def paths(self, task: str) -> list[str]:
        """All ways from the source to the end of a task, as rows are signed with them."""
        if task == SOURCE:
            return [""]
        ways = [way for before in self.tasks[task] for way in self.paths(before)]
        return [f"{way}/{task}" for way in ways]

    def build(self, source: braided.Stream, wait_s: float) -> braided.Stream:
        """The flow on a stream of `ROWS`, up to its sink."""
        streams = {SOURCE: source}
        for task, befores in self.tasks.items():
            grouped = _united(streams, befores).groupBy("k")
            waits = grouped.apply(Waits.with_(task=task, wait_s=wait_s), ROWS)
            streams[task] = waits.name(task)
        return _united(streams, self.last)


def _united(streams: Mapping[str, braided.Stream], names: Sequence[str]) -> braided.Stream:
    return reduce(braided.Stream.union, (streams[name] for name in names))


def _chain(before: str, *tasks: str) -> dict[str, tuple[str, ...]]:
    return {task: (prior,) for prior, task in zip((before, *tasks), tasks, strict=False)}


_LINEAR = Dataflow("linear", _chain(SOURCE, "a", "b", "c", "d", "e"))
_DIAMOND = Dataflow(
    "diamond",
    {**dict.fromkeys("abcd", (SOURCE,)), "e": ("a", "b", "c", "d")},
)
_STAR = Dataflow(
    "star",
    {"a": (SOURCE,), "b": (SOURCE,), "hub": ("a", "b"), "c": ("hub",), "d": ("hub",)},
)
_GRID = Dataflow(
    "grid",
    {
        "parse": (SOURCE,),
        **_chain("parse", "meter", "clean", "interpolate", "validate"),
        **_chain("parse", "weather", "annotate", "fill", "align"),
        "join": ("validate", "align"),
        **_chain("join", "forecast", "regress", "report"),
        **_chain("join", "average", "peaks"),
    },
    is_reconstruction=True,
)
_TRAFFIC = Dataflow(
    "traffic",
    {
        **_chain(SOURCE, "parse", "match"),
        **_chain("match", "speed", "window", "smooth"),
        **_chain("match", "count", "density", "estimate"),
        "join": ("smooth", "estimate"),
        **_chain("join", "detect"),
        **_chain("match", "archive"),
    },
    is_reconstruction=True,
)
DATAFLOWS = (_LINEAR, _DIAMOND, _STAR, _GRID, _TRAFFIC)
