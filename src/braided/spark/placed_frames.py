"""Frames whose partitions run on hosts of our choice.

PySpark has no way to say where the reader of a shuffle should run. An RDD can: a class that wraps
another and names preferred hosts is all it takes (`java_classes.py` compiles it).
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame, SparkSession

from braided.spark.java_classes import java_object
from braided.spark.worker_process import EXECUTOR_PROPERTY

__all__ = ["PlacedFrames"]

_NAME = "braided.PlacedRDD"
# The executor's id is asked for by handles: the compiler, and reflection, would load all classes
# that SparkEnv mentions, and Spark does not bring all of them.
_SOURCE = f"""
package braided;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.ArrayList;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.rdd.RDD;

public class PlacedRDD extends RDD {{
  private final RDD parent;
  private final String[] hosts;

  public PlacedRDD(RDD parent, String[] hosts) {{
    super(parent, parent.elementClassTag());
    this.parent = parent;
    this.hosts = hosts;
  }}

  public Partition[] getPartitions() {{ return parent.partitions(); }}

  public scala.collection.Iterator compute(Partition partition, TaskContext context) {{
    try {{
      Class env = Class.forName("org.apache.spark.SparkEnv");
      MethodHandles.Lookup lookup = MethodHandles.publicLookup();
      Object found = lookup.findStatic(env, "get", MethodType.methodType(env))
          .invokeWithArguments(new Object[0]);
      Object id = lookup.findVirtual(env, "executorId", MethodType.methodType(String.class))
          .invokeWithArguments(new Object[] {{found}});
      context.getLocalProperties().setProperty("{EXECUTOR_PROPERTY}", (String) id);
    }} catch (Throwable error) {{
      // Then nobody knows where the task ran, which is all there is to it.
    }}
    return parent.iterator(partition, context);
  }}

  public scala.collection.immutable.Seq getPreferredLocations(Partition partition) {{
    ArrayList locations = new ArrayList();
    String host = hosts[partition.index()];
    if (host.length() > 0) {{ locations.add(host); }}
    return scala.jdk.javaapi.CollectionConverters.asScala(locations).toSeq();
  }}

  public static class Maker implements java.util.function.BiFunction {{
    public Object apply(Object parent, Object hosts) {{
      return new PlacedRDD((RDD) parent, ((String) hosts).split(" ", -1));
    }}
  }}
}}
"""


class PlacedFrames:
    """Places frames of a SparkContext; made once it is known that its JVM can do it."""

    def __init__(self, spark: SparkSession) -> None:
        self._maker = java_object(spark, _SOURCE, f"{_NAME}$Maker", ships=True).result()

    def place(self, frame: DataFrame, hosts: Sequence[str]) -> DataFrame:
        """The frame's rows, partition for partition, each computed on its host if that is there;
        "" for any.
        """
        jdf, spark = frame._jdf, frame.sparkSession
        rdd = self._maker.apply(jdf.queryExecution().toRdd(), " ".join(hosts))
        placed = spark._jsparkSession.internalCreateDataFrame(rdd, jdf.schema(), False)
        return DataFrame(placed, spark)

    def tasks(self, context: SparkContext, sites: Sequence[str]) -> RDD[int]:
        """The numbers from 0 on, one for each site, in a task there; for functions that may not
        count on a worker to have more than Python. A site is a host, or `site_of` an executor.
        """
        numbers = context.parallelize(range(len(sites)), len(sites))
        placed = self._maker.apply(numbers._jrdd.rdd(), " ".join(sites))
        return RDD(placed.toJavaRDD(), context, numbers._jrdd_deserializer)
