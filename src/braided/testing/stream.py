"""`StreamTest`: a flow run batch by batch in a test, with rows, time, rescales and crashes as data.

    with StreamTest(spark, "id string, value double", flow) as t:
        t.addData(("a", 1.0), ("b", 2.0))       # one batch
        t.checkAnswer(("a", 1.0), ("b", 2.0))
        t.crash(at="after-manifest")            # the next batch ends there
        t.addData(("a", 5.0))
        t.restart()
        t.checkState({"a": {"total": 6.0}, "b": {"total": 2.0}})

Every `addData` is a batch of its own, also when the query is down and finds several at once when it
is back, so what a test sees does not depend on how fast anything is. A crash is an error that is
raised at a place of the engine (`failpoints.POINTS`): the query ends there and leaves its
checkpoint as a killed driver would.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.types import BooleanType, StructField, StructType

from braided import failpoints
from braided.api.query import ElasticQuery
from braided.api.stream import Stream, stream
from braided.errors import DefinitionError
from braided.flow.graph import flow_of
from braided.flow.step import FieldsByKey, KeyedStep
from braided.spark.sql_text import quoted

__all__ = ["StreamTest"]

_TICK = "__braided_tick"
_RESCALE_S = 120.0


class StreamTest:
    """One flow on one source, with directories of its own, from the first start on."""

    query: ElasticQuery | None
    """The query; None while it is stopped or has crashed."""

    checkpoint: Path
    """Its checkpoint, for `braided.state`."""

    def __init__(
        self,
        spark: SparkSession,
        schema: StructType | str,
        flow: Callable[[Stream], Stream],
        *,
        watermark: tuple[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`flow` makes the stream under test of one with the rows that the test adds.

        `watermark` is what `withWatermark` takes: the column of event time, and the delay.
        `options` go to the writer (`{"braided.channels": 2}`).
        """
        self._spark = spark
        self._schema = spark.createDataFrame([], schema).schema
        self._flow = flow
        self._watermark = watermark
        self._options = dict(options or {})
        self._armed: str | None = None
        self._added = 0
        self._checked: list[Row] = []
        self._steps: dict[str, KeyedStep] = {}
        self._by_value: Any = None
        self.query = None

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="braided-test-")
        self._home = Path(self._directory.name)
        self._input, self._output = self._home / "input", self._home / "output"
        self._input.mkdir()
        self.checkpoint = self._home / "checkpoint"
        # Workers can't import a test file: what it defines travels as it is.
        name = self._flow.__module__
        if name != "__main__" and name not in cloudpickle.list_registry_pickle_by_value():  # type: ignore[no-untyped-call]
            self._by_value = sys.modules[name]
            cloudpickle.register_pickle_by_value(self._by_value)  # type: ignore[no-untyped-call]
        try:
            self.restart()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        failpoints.arm(None)
        try:
            self.stop()
        finally:
            if self._by_value is not None:
                cloudpickle.unregister_pickle_by_value(self._by_value)  # type: ignore[no-untyped-call]
            self._directory.cleanup()

    # -- what happens ----------------------------------------------------------------------

    def addData(self, *rows: tuple[Any, ...] | Row) -> None:
        """Rows arrive, and are processed as one batch if the query runs."""
        self._add(rows, tick=False)
        self._settle()

    def advanceWatermark(self, to: datetime | str) -> None:
        """Brings the watermark to a time: timers up to it fire, rows before it are late."""
        if self._watermark is None:
            raise DefinitionError(
                "advanceWatermark needs StreamTest(..., watermark=(column, delay))"
            )
        column, delay = self._watermark
        row = self._spark.range(1).select(
            (F.lit(to).cast("timestamp") + F.expr(f"INTERVAL {delay}")).alias("at")
        )
        at = row.collect()[0].at
        ticks = [tuple(at if name == column else None for name in self._schema.names)]
        # Spark has the watermark of a batch's rows in the next batch, and Braided drops what was
        # late by then in the one after: the first row of these says the time, the second makes
        # the batch that has it. The flow sees neither.
        for _ in range(2):
            self._add(ticks, tick=True)
        self._settle()

    def rescale(self, channels: int, operator: str | None = None) -> None:
        """`query.rescale`, and the batch that it takes effect in."""
        query = self._running("rescale")
        query.rescale(channels, operator)
        names = [operator] if operator is not None else list(self._steps)
        end = time.monotonic() + _RESCALE_S
        while query.isActive and any(
            query.routing()[name].channels != min(channels, len(query.routing()[name].slots))
            for name in names
        ):
            if time.monotonic() > end:
                raise AssertionError(f"no batch took up rescale({channels}) in {_RESCALE_S} s")
            time.sleep(0.01)
        self._settle()

    def stop(self) -> None:
        """Stops the query between two batches."""
        if self.query is not None:
            query, self.query = self.query, None
            query.stop()

    def restart(self, flow: Callable[[Stream], Stream] | None = None) -> None:
        """Starts the query again on its checkpoint, with another flow if one is given.

        Returns when all is processed that arrived meanwhile.
        """
        self.stop()
        self._flow = flow or self._flow
        tested = self._flow(stream(self._source()))
        self._steps = {step.name: step for step in flow_of([tested._node]).steps}
        writer = tested.writeStream.format("parquet").option("path", str(self._output))
        writer.option("checkpointLocation", str(self.checkpoint)).options(**self._options)
        self.query = writer.start()
        self._settle()

    def crash(self, at: str) -> None:
        """Makes the next batch end at a fail point; `restart` goes on from there."""
        self._running("crash")
        if at not in failpoints.POINTS:
            raise DefinitionError(f"crash(at={at!r}): there are {', '.join(failpoints.POINTS)}")
        failpoints.arm(at)
        self._armed = at

    # -- what must be ----------------------------------------------------------------------

    def checkAnswer(self, *rows: tuple[Any, ...]) -> None:
        """All rows given out so far are these, in any order."""
        self._checked = self._answer()
        _compare("checkAnswer", self._checked, rows)

    def checkNewAnswer(self, *rows: tuple[Any, ...]) -> None:
        """The rows given out since the last check are these, in any order."""
        answer = self._answer()
        new = list(answer)
        for row in self._checked:
            new.remove(row)
        self._checked = answer
        _compare("checkNewAnswer", new, rows)

    def checkState(
        self, expected: Mapping[Any, Mapping[str, Any]], operator: str | None = None
    ) -> None:
        """The committed state: fields by key, a tuple if there are several grouping columns."""
        name, fields = self._fields(operator)
        wanted = {
            key if isinstance(key, tuple) else (key,): value for key, value in expected.items()
        }
        lines = [
            f"  {key if len(key) > 1 else key[0]!r}: {fields.get(key)}, expected {wanted.get(key)}"
            for key in [*wanted, *(key for key in fields if key not in wanted)]
            if fields.get(key) != wanted.get(key)
        ]
        if lines:
            raise AssertionError(f"state of {name!r}:\n" + "\n".join(lines))

    # -- inside ----------------------------------------------------------------------------

    def _fields(self, operator: str | None) -> tuple[str, FieldsByKey]:
        """The name of the operator that is meant, and what the checkpoint has of it."""
        by_name = {
            name: fields
            for name, step in self._steps.items()
            if (fields := step.fields_in(self.checkpoint)) is not None
        }
        name = operator
        if name is None and len(by_name) == 1:
            name = next(iter(by_name))
        if name is None or name not in by_name:
            raise DefinitionError(f"checkState: name one of the operators {list(by_name)}")
        return name, by_name[name]

    def _source(self) -> DataFrame:
        schema = self._schema
        if self._watermark is not None:
            schema = StructType([*schema.fields, StructField(_TICK, BooleanType())])
        reader = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        rows = reader.parquet(str(self._input))
        if self._watermark is None:
            return rows
        column, delay = self._watermark
        # A condition on the time itself, or Spark would filter before it looks at the time.
        seen = f"NOT ({_TICK} AND {quoted(column)} IS NOT NULL)"
        return rows.withWatermark(column, delay).filter(seen).drop(_TICK)

    def _add(self, rows: Any, tick: bool) -> None:
        table = LocalDataToArrowConversion.convert(list(rows), self._schema, False)
        if self._watermark is not None:
            table = table.append_column(_TICK, pa.array([tick] * len(rows), pa.bool_()))
        hidden = self._home / f"{self._added:05d}.parquet"
        pq.write_table(table, hidden)
        # Spark takes files by age.
        age = 1_700_000_000 + self._added
        os.utime(hidden, (age, age))
        os.replace(hidden, self._input / hidden.name)
        self._added += 1

    def _settle(self) -> None:
        """Waits until all is processed, or until the crash that was asked for."""
        if self.query is None:
            return
        armed = self._armed
        try:
            self.query.processAllAvailable()
        except StreamingQueryException as error:
            self._armed = None
            failpoints.arm(None)
            if armed is None or failpoints.message(armed) not in str(error):
                raise
            self.query = None
            return
        if armed is not None:
            self._armed = None
            failpoints.arm(None)
            raise AssertionError(f"crash(at={armed!r}): the batch ended without coming there")

    def _answer(self) -> list[Row]:
        if not any(self._output.glob("_spark_metadata/[0-9]*")):  # no batch yet
            return []
        return self._spark.read.parquet(str(self._output)).collect()

    def _running(self, what: str) -> ElasticQuery:
        if self.query is None:
            raise DefinitionError(f"{what}: the query is down; restart() first")
        return self.query


def _compare(what: str, answer: list[Row], expected: tuple[tuple[Any, ...], ...]) -> None:
    unexpected: list[tuple[Any, ...]] = list(answer)
    missing = []
    for row in expected:
        try:
            unexpected.remove(row)
        except ValueError:
            missing.append(row)
    if missing or unexpected:
        raise AssertionError(
            f"{what}: missing {missing or 'nothing'}; not expected "
            f"{list(map(tuple, unexpected)) or 'nothing'}"
        )
