"""The outputs of a query: which sink gets the rows of which end of the flow, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pyspark.sql import SparkSession

from braided import failpoints
from braided.errors import CheckpointMismatchError
from braided.flow.graph import Node
from braided.query.plan import BatchFrames
from braided.query.progress import StepTimes
from braided.sinks.files import Sink, Sitting
from braided.store.history.manifest import Prepared

__all__ = ["Outputs"]


class Outputs:
    """The sinks, by the names that manifests have for them."""

    def __init__(self, ends: Sequence[Node], sinks: Sequence[Sink]) -> None:
        self._sinks = dict(zip(_names(sinks), zip(ends, sinks, strict=True), strict=True))
        self._published: tuple[Prepared, ...] = ()

    def open(self, setting: Callable[[str], Sitting]) -> None:
        """Opens every sink in the setting that goes with its name."""
        for name, (_, sink) in self._sinks.items():
            sink.open(setting(name))

    def prepare(self, frames: BatchFrames, attempt: str, steps: StepTimes) -> tuple[Prepared, ...]:
        """Computes what each sink gets and leaves it where no reader looks."""
        prepared = []
        for number, (name, (end, sink)) in enumerate(self._sinks.items()):
            if number:
                failpoints.reach("between-prepares")
            with steps.step("route"):
                frame = frames.output(end)
            with steps.step("process"):
                entries = sink.prepare(frame, f"{attempt}-{number}")
            prepared.append(Prepared(name, entries))
        return tuple(prepared)

    def forget_published(self, committed: tuple[Prepared, ...]) -> None:
        """A newer batch is committed: Spark has recorded the one before it, so nobody asks for
        that one's output again.
        """
        for output in self._published:
            self._sinks[output.sink][1].discard(output.entries)
        self._published = committed

    def check(self, batch: int, outputs: Iterable[Prepared]) -> None:
        """Refuses to publish the output of a batch to other sinks than it was made for."""
        for output in outputs:
            if output.sink not in self._sinks:
                raise CheckpointMismatchError(
                    f"batch {batch} is committed but not yet published, and its output was made "
                    f"for {output.sink}: start the query once more with the sink it had"
                )

    def publish(self, spark: SparkSession, batch: int, outputs: tuple[Prepared, ...]) -> None:
        for number, output in enumerate(outputs):
            if number:
                failpoints.reach("between-sinks")
            self._sinks[output.sink][1].publish(spark, batch, output.entries)


def _names(sinks: Sequence[Sink]) -> list[str]:
    """What the manifest calls each sink: its kind, with a number where there are several."""
    kinds = [type(sink).__name__ for sink in sinks]
    return kinds if len(kinds) == 1 else [f"{kind}-{i}" for i, kind in enumerate(kinds)]
