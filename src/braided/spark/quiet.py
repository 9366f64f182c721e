"""Sessions of our own commands, which have a screen to themselves."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

__all__ = ["command_spark", "quiet_jvm"]


@contextmanager
def command_spark(name: str) -> Iterator[SparkSession]:
    """A session on all cores of this machine, for a command that prints something else."""
    builder = SparkSession.builder.master("local[*]").appName(name)
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    with tempfile.TemporaryDirectory(prefix="braided-", ignore_cleanup_errors=True) as made:
        with quiet_jvm(Path(made) / "spark.log"):
            spark = builder.config(map=dict(quiet)).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def quiet_jvm(log: Path) -> Iterator[None]:
    """A JVM that starts in here writes to `log` what it would write to standard error."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    except BaseException:
        os.write(kept, log.read_bytes())  # why it did not start
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)
