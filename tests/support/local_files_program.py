"""Files that Spark and Braided create, in a process of its own whose `chmod` may take notes:
`python local_files_program.py home notes`.

A query runs into a file sink; then Spark does the same by itself, in a directory that is as the
other was. How many notes were taken meanwhile, and which modes the files have, is printed as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import braided
from braided.bench.session import local_spark
from support.stream_harness import Feed
from support.stream_operators import SCHEMA, Totals

__all__: list[str] = []

_UMASK = {"spark.hadoop.fs.permissions.umask-mode": "027"}
_ROWS = [("a", 1, 1, 0), ("b", 2, 2, 1), ("c", 1, 3, 2)]
_BATCHES = 3


def main(home: Path, notes: Path) -> dict[str, Any]:
    def noted() -> int:
        return len(notes.read_text().splitlines()) if notes.exists() else 0

    found: dict[str, Any] = {}
    for name in ("ours", "native"):
        (home / name / "out").mkdir(parents=True)
        os.chmod(home / name / "out", 0o2770)  # directories in it get the bit of its group, too
    with local_spark("local files", home / "spark", _UMASK) as spark:
        feed = Feed(spark, home / "in", SCHEMA)
        feed.add(_ROWS)
        rows = feed.frame(maxFilesPerTrigger=1)
        writer = braided.stream(rows).groupBy("k").apply(Totals, SCHEMA).writeStream
        writer.format("parquet").partitionBy("c").option("path", str(home / "ours" / "out"))
        query = writer.option("checkpointLocation", str(home / "ours" / "checkpoint")).start()
        query.processAllAvailable()
        begun = noted()
        for _ in range(_BATCHES):
            feed.add(_ROWS)
            query.processAllAvailable()
        found["ours"] = noted() - begun
        query.stop()
        begun = noted()
        native = rows.writeStream.format("parquet").partitionBy("c").trigger(availableNow=True)
        native.option("checkpointLocation", str(home / "native" / "checkpoint"))
        native.start(str(home / "native" / "out")).awaitTermination()
        found["native"] = noted() - begun
        hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
        found["setting"] = hadoop.get("fs.file.impl")
    found["modes"] = {name: _modes(home / name) for name in ("ours", "native")}
    return found


def _modes(home: Path) -> dict[str, list[str]]:
    """By what the files are: those of the output and of Spark's logs, from the second batch on."""
    files = {
        "file": (home / "out").glob("c=*/*.parquet"),
        "checksum": (home / "out").glob("c=*/.*.parquet.crc"),
        "directory": (home / "out").glob("c=*"),
        "log": (home / "checkpoint").glob("offsets/[1-9]"),
        "checksum of a log": (home / "checkpoint").glob("offsets/.[1-9].crc"),
        "commit": (home / "checkpoint").glob("commits/[1-9]"),
        "source": (home / "checkpoint").glob("sources/0/[1-9]"),
    }
    return {
        what: sorted({oct(path.stat().st_mode) for path in paths}) for what, paths in files.items()
    }


if __name__ == "__main__":
    print(json.dumps(main(*map(Path, sys.argv[1:]))))
