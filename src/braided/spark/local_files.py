"""Files on a local disk that are created without starting processes.

Where Hadoop's native library is missing, as it is in PySpark from PyPI, Hadoop starts `chmod` for
each file that it creates, and for the file with its checksum, before and after: milliseconds each,
dozens in a batch. Java can do the same with one call to the system. So files of ours are created by
a file system that is Hadoop's own in everything else. It is named in the settings that a file is
written with, and nowhere in the user's session. Where that can't be, Hadoop goes its usual way.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from braided.spark.java_classes import java_object
from braided.spark.jvm import java_class

__all__ = ["LocalFiles"]

log = logging.getLogger("braided")

_NAME = "braided.LocalFiles"
_SETTING = "fs.file.impl"
"""The class that Hadoop takes for local files, where it is not to choose itself."""
# As `chmod` does with four digits: a directory keeps its bits for users and groups.
_SOURCE = """
package braided;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
  public LocalFiles() { super(new Raw()); }

  public static class Raw extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) throws IOException {
      try {
        java.nio.file.Path file = pathToFile(path).toPath();
        LinkOption[] followed = new LinkOption[0];
        int mode = permission.toShort();
        if (Files.isDirectory(file, followed)) {
          mode |= ((Integer) Files.getAttribute(file, "unix:mode", followed)).intValue() & 06000;
        }
        Files.setAttribute(file, "unix:mode", Integer.valueOf(mode), followed);
      } catch (UnsupportedOperationException error) {
        super.setPermission(path, permission);
      } catch (IllegalArgumentException error) {
        super.setPermission(path, permission);
      }
    }
  }
}
"""


class LocalFiles:
    """How a session's local files are created."""

    def __init__(self, spark: SparkSession) -> None:
        native = java_class(spark.sparkContext._jvm, "org.apache.hadoop.io.nativeio.NativeIO")
        self._made = (
            None if native.isAvailable() else java_object(spark, _SOURCE, _NAME, ships=True)
        )

    def serve(self, hadoop: Any) -> None:
        """Has local files that are written with these settings of Hadoop's created so. Where the
        user has chosen a class for them, that stays.
        """
        loader = self._loader
        if loader is None or hadoop.get(_SETTING) is not None:
            return
        if hadoop.getClassByNameOrNull(_NAME) is None:
            hadoop.setClassLoader(loader)
        hadoop.set(_SETTING, _NAME)
        # It is kept by the scheme alone, also for those who ask without the setting.
        hadoop.setBoolean(f"{_SETTING}.disable.cache", True)

    @cached_property
    def _loader(self) -> Any:
        """What has the class; None where nothing has."""
        if self._made is None:
            return None
        try:
            return self._made.result().getClass().getClassLoader()
        except (PySparkException, Py4JError, OSError, TypeError) as error:
            why = str(error).split("\n", 1)[0]
            log.warning("a process is started for each local file that is created: %s", why)
            return None
