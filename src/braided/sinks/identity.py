"""How a checkpoint knows the sinks of a query again: by kind and target, never by position.

A manifest has, for every sink, its kind, its target and a name. The name is for good: it is what
the sink's target may know the query by (Delta's application id), so a sink keeps the name that the
checkpoint first gave it. Manifests of earlier versions have the name alone, which was made of a
class and a position. A sink that is found by such a name goes on with it.

Sinks of one kind and one target (two streams into one Delta table), and sinks of which nothing
tells where they lead to (`foreachBatch`), are numbered in the order of their writers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from braided.errors import CheckpointMismatchError
from braided.sinks.base import Sink
from braided.store.history.manifest import Prepared

__all__ = ["NamedSink", "name_sinks", "refuse_lost_output"]


@dataclass(frozen=True)
class NamedSink:
    """A sink and what the checkpoint calls it."""

    name: str
    kind: str
    target: str
    """With a number, where the kind and the target are those of another sink as well."""
    sink: Sink

    def prepare(self, df: DataFrame, attempt: str) -> Prepared:
        """Runs the plan; what the manifest is to say of this sink."""
        return Prepared(self.name, self.sink.prepare(df, attempt), self.kind, self.target)


def name_sinks(sinks: Sequence[Sink], outputs: Sequence[Prepared]) -> list[NamedSink]:
    """The sinks by the names that they had in the newest manifest, whose outputs these are; with
    new names, where it did not have them.
    """
    names = {(output.kind, output.target): output.sink for output in outputs if output.kind}
    unsaid = {output.sink for output in outputs if not output.kind}
    named = []
    for sink, target, earlier in zip(sinks, _targets(sinks), _earlier_names(sinks), strict=True):
        name = names.get((sink.kind, target), f"{sink.kind}:{target}")
        if earlier is not None and earlier in unsaid:
            name = earlier
        named.append(NamedSink(name, sink.kind, target, sink))
    return named


def refuse_lost_output(batch: int, outputs: Sequence[Prepared], named: Sequence[NamedSink]) -> None:
    """Refuses sinks of which none is the one that output of a batch waits for."""
    names = {each.name for each in named}
    for output in outputs:
        if output.sink not in names:
            sink = f"{output.kind} {output.target}" if output.kind else output.sink
            present = ", ".join(f"{each.kind} {each.target}" for each in named)
            raise CheckpointMismatchError(
                f"batch {batch} is committed but not yet published, and some of its output was "
                f"made for the sink {sink}, which the query does not have any more (it has "
                f"{present}). Start it once more with that sink; when the batch is published, the "
                "sink can be left out"
            )


def _targets(sinks: Sequence[Sink]) -> list[str]:
    """The targets, with numbers where they would be the same."""
    seen: Counter[tuple[str, str | None]] = Counter()
    targets = []
    for sink in sinks:
        seen[sink.kind, sink.target] += 1
        number = seen[sink.kind, sink.target]
        if sink.target is None:
            targets.append(str(number))
        else:
            targets.append(sink.target if number == 1 else f"{sink.target}#{number}")
    return targets


def _earlier_names(sinks: Sequence[Sink]) -> list[str | None]:
    """What earlier versions would have called the sinks: by class and position."""
    names = [sink.earlier_name for sink in sinks]
    if len(names) == 1:
        return names
    return [None if name is None else f"{name}-{i}" for i, name in enumerate(names)]
