"""The slots of many keys, looked up by Spark where it routes rows.

An expression that names each key would be as long as there are keys, and a join would be another
job. So a function of two hashes looks into a table of ours, which every executor is sent once, as
a broadcast. Its name and its plan are the same whatever is in it. The table is an array of numbers,
by open addressing: hash, check and slot + 1 of each key. (An object of a class of ours would not
do: where driver and executor are one process, each has the class from a loader of its own.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.classic.column import _to_java_column, _to_seq

from braided.spark.java_classes import java_object

__all__ = ["KeyLookup"]

_NAME = "braided.KeyLookup"
_SOURCE = """
package braided;

import java.io.Serializable;
import java.nio.ByteBuffer;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.api.java.UDF2;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;

public class KeyLookup implements UDF2, Serializable {
  private final Broadcast keys;
  private final long slots;
  private transient long[] found;

  public KeyLookup(Broadcast keys, long slots) {
    this.keys = keys;
    this.slots = slots;
  }

  public Object call(Object hash, Object check) {
    long[] entries = found;
    if (entries == null) { entries = found = (long[]) keys.value(); }
    long key = ((Long) hash).longValue();
    long other = ((Long) check).longValue();
    int last = entries.length / 3 - 1;
    int at = first(key, last);
    while (entries[3 * at + 2] != 0L) {
      if (entries[3 * at] == key && entries[3 * at + 1] == other) {
        return Long.valueOf(entries[3 * at + 2] - 1L);
      }
      at = (at + 1) & last;
    }
    return Long.valueOf(Math.floorMod(key, slots));
  }

  // Not by the lowest bits, which the keys of a slot have in common.
  private static int first(long hash, int last) { return (int) (hash >>> 20) & last; }

  static long[] entries(byte[] packed) {
    int count = packed.length / 20;
    int size = 2;
    while (size < 2 * count) { size *= 2; }
    long[] entries = new long[3 * size];
    ByteBuffer columns = ByteBuffer.wrap(packed);
    for (int i = 0; i < count; i++) {
      long hash = columns.getLong(8 * i);
      int at = first(hash, size - 1);
      while (entries[3 * at + 2] != 0L) { at = (at + 1) & (size - 1); }
      entries[3 * at] = hash;
      entries[3 * at + 1] = columns.getLong(8 * (count + i));
      entries[3 * at + 2] = columns.getInt(16 * count + 4 * i) + 1L;
    }
    return entries;
  }

  public static class Maker implements java.util.function.BiFunction {
    public Object apply(Object data, Object slots) {
      if (data instanceof byte[]) { return entries((byte[]) data); }
      UDF2 lookup = new KeyLookup((Broadcast) data, ((Number) slots).longValue());
      return functions.udf(lookup, DataTypes.LongType).asNonNullable();
    }
  }
}
"""


class KeyLookup:
    """The slots of keys that have one of their own, and of all others by their hash."""

    def __init__(
        self,
        spark: SparkSession,
        hashes: npt.NDArray[np.int64],
        checks: npt.NDArray[np.int64],
        own: npt.NDArray[np.int32],
        slots: int,
    ) -> None:
        """Both hashes and the slot of each key that has its own; `slots` is how many there are."""
        context = spark.sparkContext
        maker = java_object(spark, _SOURCE, f"{_NAME}$Maker", ships=True).result()
        columns = (hashes.astype(">i8"), checks.astype(">i8"), own.astype(">i4"))
        data = b"".join(each.tobytes() for each in columns)
        self._context = context
        self._broadcast: Any = context._jsc.broadcast(maker.apply(data, 0))
        self._function: Any = maker.apply(self._broadcast, slots)

    def slot(self, hash: Column, check: Column) -> Column:
        """The slot of a key by its two hashes, as a bigint."""
        columns = _to_seq(self._context, [hash, check], _to_java_column)
        return ClassicColumn(self._function.apply(columns))

    def destroy(self) -> None:
        """No task uses it any more."""
        self._broadcast.destroy()
