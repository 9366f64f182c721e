"""`braided import-state NATIVE CHECKPOINT`: `import_state` on the command line."""

from __future__ import annotations

import argparse

from braided.import_state import import_state
from braided.spark.quiet import command_spark
from braided.spark.source_positions import positions_told
from braided.spark.store_settings import session_store
from braided.store.durable.location import Location

__all__ = ["main"]


def main(arguments: argparse.Namespace) -> int:
    """Imports the state of a native checkpoint; the exit status."""
    with command_spark("braided import-state") as spark:
        imported = import_state(
            spark,
            arguments.native,
            arguments.checkpoint,
            arguments.name,
            arguments.operator,
            arguments.slots,
            arguments.with_offsets,
        )
        native = session_store(spark, Location.of(arguments.native))
        told = positions_told(native, imported.batch)
    print(
        f"{imported.content.keys} keys, {imported.content.bytes} bytes of state of batch "
        f"{imported.batch} are waiting in {arguments.checkpoint} for a processor called "
        f"{arguments.name!r}"
    )
    if arguments.with_offsets:
        print("a query that reads the same sources, in the same order, goes on where it stopped")
    elif told:
        print("the native query had read (let the sources of the new one start after that):")
        for line in told:
            print(f"  {line}")
    return 0
