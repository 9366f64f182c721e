"""`braided import-state NATIVE CHECKPOINT`: `import_state` on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from braided.import_state import import_state
from braided.spark.quiet import command_spark

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
    print(
        f"{imported.content.keys} keys, {imported.content.bytes} bytes of state of batch "
        f"{imported.batch} are waiting in {arguments.checkpoint} for a processor called "
        f"{arguments.name!r}"
    )
    offsets = Path(arguments.native) / "offsets" / str(imported.batch)
    if arguments.with_offsets:
        print("a query that reads the same sources, in the same order, goes on where it stopped")
    elif offsets.exists():
        print("the sources had come to (let those of the new query start there):")
        for line in offsets.read_text().split("\n")[2:]:
            print(f"  {line}")
    return 0
