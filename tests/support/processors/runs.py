"""Runs a scenario on one side, Spark's own or Braided's, and keeps what came out of each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame

import braided
from support.processors.scenario import Operator, Scenario
from support.reassigning import Reassigner
from support.stream_harness import Feed

__all__ = ["Outcome", "Running", "Side", "flow_of", "prepared"]

Side = Literal["native", "braided"]
Row = tuple[Any, ...]


@dataclass
class Outcome:
    """What came out, step by step, or why it ended early."""

    checkpoint: str = ""
    steps: list[list[Row]] = field(default_factory=list)
    error: str | None = None

    @property
    def rows(self) -> list[Row]:
        return [row for step in self.steps for row in step]


class Running:
    """A scenario under way on one side: started, stopped and asked step by step."""

    def __init__(self, scenario: Scenario, feed: Feed, home: Path, side: Side) -> None:
        self.outcome = Outcome(str(home / f"checkpoint-{side}"))
        self._scenario = scenario
        self._feed = feed
        self._side = side
        self._operators = scenario.operators
        self._query: Any = None
        self._collected: list[Row] = []
        self._reassigner = Reassigner(len(scenario.name))

    def before(self, number: int) -> None:
        """What happens before the rows of a step are fed."""
        if self.outcome.error is not None:
            return
        if number in self._scenario.restarts:
            self.stop()
            self._operators = self._scenario.restarts[number] or self._operators
        elif self._query is not None and self._side == "braided":
            self._reshape(number)

    def step(self, number: int) -> None:
        """What follows from the rows that have just been fed."""
        if self.outcome.error is not None:
            return
        try:
            if self._query is None:
                self._query = self._start()
            self._query.processAllAvailable()
        except Exception as error:
            self.outcome.error = f"{type(error).__name__}: {error}"
            return
        self.outcome.steps.append(list(self._collected))
        self._collected.clear()

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._query = None

    def _start(self) -> Any:
        frame = prepared(self._scenario, self._feed.frame())
        flow = flow_of(self._scenario, frame, self._operators, self._side)
        writer = flow.writeStream.foreachBatch(self._collect)
        writer = writer.option("checkpointLocation", self.outcome.checkpoint)
        writer = writer.outputMode(self._scenario.mode)
        if self._side == "braided":
            writer = writer.option("braided.slots", 8).option("braided.channels", 2)
        return writer.start()

    def _reshape(self, number: int) -> None:
        """Slots change their channel between any two steps, and keys their slots."""
        self._reassigner.propose(self._query)
        if number % 2:
            self._query.rescale(1 + 2 * (number % 3))
        else:
            self._query.rebalance()

    def _collect(self, frame: DataFrame, batch: int) -> None:
        self._collected += [tuple(row) for row in frame.collect()]


def prepared(scenario: Scenario, frame: DataFrame) -> DataFrame:
    return frame if scenario.prepare is None else scenario.prepare(frame)


def flow_of(
    scenario: Scenario, frame: DataFrame, operators: tuple[Operator, ...], side: Side
) -> Any:
    """The whole flow; the sides differ in one call."""
    spark = frame.sparkSession
    flow: Any = frame if side == "native" else braided.stream(frame)
    for operator in operators:
        arguments = dict(operator.call)
        if operator.initial is not None:
            start = spark.createDataFrame(list(operator.initial.rows), operator.initial.schema)
            arguments["initialState"] = start.groupBy(*operator.initial.keys)
        if operator.before is not None:
            flow = operator.before(flow)
        flow = getattr(flow.groupBy(*operator.keys), operator.method)(**arguments)
    return flow if scenario.finish is None else scenario.finish(flow)
