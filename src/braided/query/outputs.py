"""The outputs of a query: which sink gets the rows of which end of the flow, and when."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from pyspark.sql import DataFrame, SparkSession

from braided import failpoints
from braided.errors import BraidedError, PublishError
from braided.flow.graph import Node
from braided.query.plan import BatchFrames
from braided.query.progress import StepTimes
from braided.sinks.base import Sink
from braided.sinks.identity import NamedSink
from braided.spark.reasons import reason
from braided.store.history.manifest import Prepared

__all__ = ["Outputs"]


class Outputs:
    """The sinks, each with the end of the flow that it writes."""

    def __init__(
        self,
        ends: Sequence[Node],
        sinks: Sequence[NamedSink],
        newest: Sequence[Prepared],
        ending: ExitStack,
    ) -> None:
        """`newest` is what the newest batch prepared, before this start; `ending` lets go of what
        sinks have.
        """
        self.close = ending.close
        self._ends = tuple(zip(ends, sinks, strict=True))
        self._sinks = {named.name: named.sink for named in sinks}
        self._published = tuple(output for output in newest if output.sink in self._sinks)
        self.rows: dict[str, int | None] = dict.fromkeys(self.names, 0)
        """Rows of the newest batch that each sink got, by kind and target; none before the first.
        """
        self.frames: list[DataFrame] = []
        """What the newest batch had computed for each sink, for its plans."""

    def prepare(self, frames: BatchFrames, attempt: str, steps: StepTimes) -> tuple[Prepared, ...]:
        """Computes what each sink gets and leaves it where no reader looks."""
        prepared = []
        self.frames = []
        for number, (end, named) in enumerate(self._ends):
            if number:
                failpoints.reach("between-prepares")
            with steps.step("route"):
                frame = frames.output(end)
            self.frames.append(frame)
            with steps.step("process"):
                prepared.append(named.prepare(frame, f"{attempt}-{number}"))
            self.rows[f"{named.kind}[{named.target}]"] = named.sink.rows_prepared
        return tuple(prepared)

    @property
    def names(self) -> list[str]:
        return [f"{named.kind}[{named.target}]" for _, named in self._ends]

    def forget_published(self, committed: tuple[Prepared, ...]) -> None:
        """A newer batch is committed: Spark has recorded the one before it, so nobody asks for
        that one's output again.
        """
        for output in self._published:
            self._sinks[output.sink].discard(output.entries)
        self._published = committed

    def publish(self, spark: SparkSession, batch: int, outputs: tuple[Prepared, ...]) -> None:
        for number, output in enumerate(outputs):
            if number:
                failpoints.reach("between-sinks")
            sink = self._sinks[output.sink]
            try:
                sink.publish(spark, batch, output.entries)
            except (BraidedError, failpoints.Crash):
                raise
            except Exception as error:
                raise _unpublished(sink, batch, error) from error


def _unpublished(sink: Sink, batch: int, error: Exception) -> PublishError:
    """What a sink, or the user's function behind it, raised, with the lines that it came by."""
    said, _, lines = reason(error).partition("\n  File ")
    which = " ".join(filter(None, (sink.kind, sink.target)))
    return PublishError(
        f"the sink {which} raised {said}\n"
        f"  batch: {batch}, which is committed: put it right and start the query again, which "
        "hands the same rows over again" + (f"\n  File {lines}" if lines else "")
    )
