"""The files that a job has written, as lines of a sink log, which stay in memory.

Spark's commit protocol hands the names of a job's files to a sink log and tells them to nobody
else. A log of Spark's would write them to a file, only for us to read it back.
"""

from __future__ import annotations

import tempfile
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession

from braided.spark.java_classes import java_object

__all__ = ["FileListing"]

_PACKAGE = "org.apache.spark.sql.execution.streaming.sinks"
_SOURCE = f"""
package braided;

import java.io.ByteArrayOutputStream;
import {_PACKAGE}.FileStreamSinkLog;
import org.apache.spark.sql.classic.SparkSession;

public class FileListing extends FileStreamSinkLog {{
  private String text = "";

  private FileListing(SparkSession session, String directory) {{
    super(1, session, directory, scala.Option.empty());
  }}

  public boolean add(long batch, Object[] files) {{
    ByteArrayOutputStream lines = new ByteArrayOutputStream();
    serialize(files, lines);
    text = new String(lines.toByteArray(), java.nio.charset.StandardCharsets.UTF_8);
    return true;
  }}

  public String text() {{ return text; }}

  public static class Maker implements java.util.function.BiFunction {{
    public Object apply(Object session, Object directory) {{
      return new FileListing((SparkSession) session, (String) directory);
    }}
  }}
}}
"""


class FileListing:
    """Notes the files of one job after the other."""

    def __init__(self, spark: SparkSession) -> None:
        self._session: Any = spark._jsparkSession
        self._maker = java_object(spark, _SOURCE, "braided.FileListing$Maker", ships=False)

    @cached_property
    def log(self) -> Any:
        """The sink log that a job is to be given, as batch 0. Nothing is written where it is: it
        only has to be somewhere that is there.
        """
        return self._maker.result().apply(self._session, f"file://{tempfile.gettempdir()}")

    def entries(self) -> tuple[str, ...]:
        """The lines of the last job's files, as a sink log has them."""
        version, *lines = str(self.log.text()).split("\n")
        assert version == "v1", "what is written to manifests is of this version"
        return tuple(lines)
