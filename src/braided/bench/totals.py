"""Count and sum per key, the job that both sides of a benchmark run, and comparing results."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from braided.bench.session import TOTALS
from braided.errors import DefinitionError
from braided.operator.columns import ColumnOperator
from braided.operator.definition import Operator

__all__ = [
    "ColumnTotals",
    "NativeTotals",
    "NoOperation",
    "RowTotals",
    "Totals",
    "last_per_key",
    "need_native",
    "published",
    "same_rows",
]


class Totals(Operator):
    """One row out for each key and batch."""

    n: int = 0
    s: float = 0.0

    def onBatch(self, rows: pa.Table) -> Iterator[tuple[int, int, float]]:
        self.n += rows.num_rows
        self.s += sum(rows["v"].to_pylist())  # cheaper than Arrow for the few rows of a key
        yield self.key.k, self.n, self.s


class RowTotals(Operator):
    """One row out for each row in."""

    n: int = 0
    s: float = 0.0

    def onRow(self, row: Row) -> Iterator[tuple[int, int, float]]:
        self.n += 1
        self.s += row.v
        yield row.k, self.n, self.s


class ColumnTotals(ColumnOperator):
    """The same as `Totals`, for thousands of keys in one call."""

    n: Annotated[int, pa.int64()] = 0
    s: Annotated[float, pa.float64()] = 0.0

    def onRows(self, state: pa.Table, rows: pa.Table, index: npt.NDArray[np.int64]) -> Any:
        n = state["n"].to_numpy() + np.bincount(index)
        s = state["s"].to_numpy() + np.bincount(index, rows["v"].to_numpy())
        return {"n": n, "s": s}, {"k": self.keys["k"], "n": n, "s": s}


class NoOperation(ColumnOperator):
    """Takes the rows in and does nothing: what Spark and the way to the task take is left."""

    n: Annotated[int, pa.int64()] = 0

    def onRows(self, state: pa.Table, rows: pa.Table, index: npt.NDArray[np.int64]) -> None:
        """Leaves all keys as they are, and gives nothing out."""


class NativeTotals(StatefulProcessor):
    """The same on Spark's own `transformWithState`: one row out for each key and batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", "n long, s double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, s = self._totals.get() or (0, 0.0)
        for row in rows:
            n += 1
            s += row.v
        self._totals.update((n, s))
        yield Row(k=key[0], n=n, s=s)

    def close(self) -> None:
        pass


def need_native() -> None:
    """Refuses to start when Spark's transformWithState would fail for want of a package."""
    missing = [name for name in ("google.protobuf", "grpc") if not _found(name)]
    if missing:
        raise DefinitionError(
            f"the native side needs {' and '.join(missing)}: pip install 'braided[bench]'"
        )


def _found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def published(spark: SparkSession, path: str, batches: int) -> DataFrame:
    """What the first batches of a query made visible in a file sink, as the sink's log lists it."""
    files = []
    for batch in range(batches):
        lines = Path(path, "_spark_metadata", str(batch)).read_text().splitlines()
        files += [json.loads(line)["path"] for line in lines[1:]]
    return spark.read.schema(TOTALS).parquet(*files)


def last_per_key(rows: DataFrame) -> DataFrame:
    """The newest count and sum of each key; the count only grows, so it tells the newest."""
    newest = rows.groupBy("k").agg(F.max(F.struct("n", "s")).alias("t"))
    return newest.select("k", "t.n", "t.s")


def same_rows(frames: Iterable[DataFrame]) -> bool:
    """Whether all have exactly the same rows, at least one."""
    first, *others = (frame.select("k", "n", "s") for frame in frames)
    first = first.persist()
    try:
        if not first.head(1):
            return False
        for other in others:
            # Signed counts of equal rows: one pass over both, 0 everywhere when they are the same.
            both = first.withColumn("side", F.lit(1)).union(other.withColumn("side", F.lit(-1)))
            uneven = both.groupBy("k", "n", "s").agg(F.sum("side").alias("d")).filter("d <> 0")
            if uneven.head(1):
                return False
        return True
    finally:
        first.unpersist()
