"""What every benchmark runs in: one local Spark, inputs as files, times from Spark's progress.

Both sides of a benchmark read the same files in the same order and are timed by Spark itself:
`triggerExecution` is all of a batch, from looking for input to the commit.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from braided.spark.interpreter import preload_workers, use_driver_python
from braided.spark.quiet import quiet_jvm

__all__ = [
    "INPUT",
    "NATIVE",
    "TOTALS",
    "Arena",
    "InputFiles",
    "KeyNumbers",
    "Progress",
    "Query",
    "arena",
    "local_spark",
    "median",
    "quiet_spark",
    "run_all",
    "touched_keys",
    "with_data",
]

INPUT = "k long, v double"
TOTALS = "k long, n long, s double"

Progress = Callable[[str], None]
KeyNumbers = npt.NDArray[np.int64]

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "2000",
    # One entry of a file sink's log per batch, so that outputs can be told apart by batch.
    "spark.sql.streaming.fileSink.log.compactInterval": "100000",
}
# The native side as one would run it today: state in RocksDB, changes written as changelogs.
NATIVE = {
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


class Query(Protocol):
    """What a native query and an elastic one have in common."""

    @property
    def recentProgress(self) -> list[Any]: ...

    def processAllAvailable(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class Arena:
    """A Spark session and a directory that is gone afterwards."""

    spark: SparkSession
    work: Path

    def fresh(self, name: str) -> str:
        """The path of a directory of this name that does not exist."""
        path = self.work / name
        shutil.rmtree(path, ignore_errors=True)
        return str(path)


@contextmanager
def arena(name: str, conf: Mapping[str, str] | None = None, cores: int = 2) -> Iterator[Arena]:
    """Starts Spark for a benchmark; ends it and removes its files."""
    with tempfile.TemporaryDirectory(prefix="braided-bench-", ignore_cleanup_errors=True) as made:
        work = Path(made)
        settings = {**NATIVE, **(conf or {})}
        with local_spark(f"braided bench {name}", work, settings, cores) as spark:
            yield Arena(spark, work)


@contextmanager
def local_spark(
    name: str, work: Path, conf: Mapping[str, str] | None = None, cores: int = 2
) -> Iterator[SparkSession]:
    """A session on some cores of this machine that says nothing and keeps its files in `work`."""
    with quiet_spark(name, work, {"spark.master": f"local[{cores}]", **(conf or {})}) as spark:
        yield spark


@contextmanager
def quiet_spark(name: str, work: Path, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """The same on whichever master the settings name."""
    settings = {**_CONF, "spark.local.dir": str(work / "local"), **conf}
    settings["spark.sql.warehouse.dir"] = str(work / "warehouse")
    with quiet_jvm(work / "spark.log"):
        spark = SparkSession.builder.appName(name).config(map=dict(settings)).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    use_driver_python(spark)  # the native side too
    preload_workers(spark, "braided.worker_daemon")
    try:
        yield spark
    finally:
        spark.stop()


class InputFiles:
    """Files of (k, v) rows, read by a file source in the order in which they were added.

    Values are multiples of 1/8 below 128: sums of them are exact in a double, so results can be
    compared for equality whatever the order of addition.
    """

    def __init__(self, directory: Path, seed: int = 7) -> None:
        self.directory = directory
        self.files: list[Path] = []
        self._random = np.random.default_rng(seed)
        directory.mkdir(parents=True)

    def add(self, keys: KeyNumbers, files: int = 1) -> None:
        """One batch of input: a row for each of these keys, in so many files."""
        values = self._random.integers(0, 1024, len(keys)) / 8.0
        for part_keys, part_values in zip(
            np.array_split(keys, files), np.array_split(values, files), strict=True
        ):
            # Written elsewhere and moved: a source that is running sees whole files only.
            path = self.directory / f"{len(self.files):06}.parquet"
            hidden = self.directory / f".{path.name}"
            pq.write_table(pa.table({"k": part_keys, "v": part_values}), hidden)
            # The source goes by the time of change, which for files made at once is the same.
            os.utime(hidden, (1_700_000_000 + len(self.files),) * 2)
            hidden.rename(path)
            self.files.append(path)

    def show(self, files: Iterable[Path]) -> None:
        """Adds files of other inputs as they are, without copying them."""
        for file in files:
            path = self.directory / file.name
            os.link(file, path)
            self.files.append(path)

    def random_keys(self, rows: int, keys: int) -> KeyNumbers:
        return self._random.integers(0, keys, rows)

    def stream(self, spark: SparkSession, files: int = 1) -> DataFrame:
        """The files as a stream, so many of them a batch."""
        reader = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", files)
        return reader.parquet(str(self.directory))

    def totals(self, spark: SparkSession) -> DataFrame:
        """Count and sum per key, by plain SQL."""
        rows = spark.read.schema(INPUT).parquet(*map(str, self.files))
        return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def touched_keys(random: np.random.Generator, touched: int, total: int) -> KeyNumbers:
    """So many different keys of a total, spread evenly over all of them and shuffled."""
    step = total // touched
    chosen = np.arange(touched) * step + random.integers(0, step, touched)
    random.shuffle(chosen)
    return chosen.astype(np.int64)


def run_all(query: Query) -> list[Any]:
    """Lets a query process all of its input; the progress of batches that had any."""
    try:
        query.processAllAvailable()
        return with_data(query.recentProgress)
    finally:
        query.stop()


def with_data(progress: Iterable[Any]) -> list[Any]:
    return [p for p in progress if p["numInputRows"] > 0]


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))
