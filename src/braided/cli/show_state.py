"""`braided state CHECKPOINT`: what a checkpoint holds, printed, as JSON lines, or as Parquet.

What the manifests know is shown without Spark; the keys themselves are read by a local one.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.storagelevel import StorageLevel

from braided.api.state import state
from braided.errors import StateNotFoundError
from braided.inspect.contents import reader_of
from braided.inspect.frames import raised_by_task
from braided.inspect.json_text import json_text
from braided.inspect.versions import Versions
from braided.spark.quiet import command_spark
from braided.store.durable.open_store import checkpoint_store
from braided.store.history.manifest import View

__all__ = ["main", "show", "summary"]

_SHOWN = 20
_READS = 3


def main(arguments: argparse.Namespace) -> int:
    """Shows a checkpoint; the exit status."""
    versions = Versions(checkpoint_store(arguments.checkpoint))
    view = versions.view(arguments.version)
    if not arguments.json:
        for line in summary(arguments.checkpoint, versions, view):
            print(line, flush=True)
    with command_spark("braided state") as spark:
        show(arguments, spark)
    return 0


def show(arguments: argparse.Namespace, spark: SparkSession) -> None:
    """Prints or writes the keys.

    A query that runs may remove the newest version while it is read: then there is a newer one.
    """
    for attempt in range(1, _READS + 1):
        df = state(arguments.checkpoint, spark, arguments.operator, arguments.version)
        try:
            return _give(df, arguments)
        except PySparkException as error:
            found = raised_by_task(error)
            gone = isinstance(found, StateNotFoundError) and arguments.version is None
            if not gone or attempt == _READS:
                raise found or error from None


def _give(df: DataFrame, arguments: argparse.Namespace) -> None:
    if arguments.to is not None:
        df.write.mode("errorifexists").parquet(arguments.to)
        print(f"written to {arguments.to}", file=sys.stderr if arguments.json else sys.stdout)
    elif arguments.json:
        line = json_text(F.struct("*"), df.schema).alias("line")
        lines = df.select(line).persist(StorageLevel.DISK_ONLY)
        # Read as a whole before the first line is out: what is printed can't be taken back.
        lines.count()
        for row in lines.toLocalIterator():
            print(row.line)
        lines.unpersist()
    else:
        df.drop("batch").orderBy("operator", "slot").show(_SHOWN, truncate=60)


def summary(checkpoint: str, versions: Versions, view: View) -> list[str]:
    """What manifests know: a line for the checkpoint, and one for each operator."""
    kept = versions.retained()
    lines = [f"{checkpoint}: batch {view.batch}; {kept[0]} to {kept[-1]} are retained"]
    for name, known in view.operators.items():
        type = reader_of(name, known.meta).type
        fields = type.names if isinstance(type, StructType) else []
        lines.append(
            f"  {name}: {known.keys} keys, {known.bytes} bytes, {known.meta.slots} slots on "
            f"{known.channels} channels, {len(known.due)} slots with timers; "
            f"by {known.meta.key}; fields {', '.join(fields) or 'none'}"
        )
    return lines
