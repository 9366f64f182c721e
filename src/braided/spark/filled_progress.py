"""Spark's progress of a query, filled with what Spark can't know of state that is ours.

Spark makes the progress of a batch from its own plan, in which our operators are a `foreachBatch`:
no state, no rows of output. The object that keeps progress and tells listeners of it is a
`ProgressReporter`; a query gets another one, a subclass that is written in Java below, before its
first batch has ended. So a listener, `lastProgress` and Spark's metrics system have the figures in
the same fields as for a native query, and the batch pays for one call to the JVM.

Where that can't be done, on a Spark whose classes are others, progress stays as Spark makes it.
"""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from braided.spark.java_classes import java_object
from braided.spark.tick import Bell

__all__ = ["OBSERVED", "FilledProgress"]

OBSERVED = "braided"
"""The name among the observed metrics under which a listener finds our section, as JSON."""

_RUNTIME = "org.apache.spark.sql.execution.streaming.runtime"
_SOURCE = f"""
package braided;

import com.codahale.metrics.Gauge;
import com.codahale.metrics.MetricRegistry;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import {_RUNTIME}.ProgressReporter;
import {_RUNTIME}.StreamExecution;
import org.apache.spark.sql.catalyst.expressions.GenericRowWithSchema;
import org.apache.spark.sql.streaming.SinkProgress;
import org.apache.spark.sql.streaming.SourceProgress;
import org.apache.spark.sql.streaming.StateOperatorProgress;
import org.apache.spark.sql.streaming.StreamingQueryProgress;
import org.apache.spark.sql.types.StructType;

public class FilledProgress extends ProgressReporter {{
  private final ObjectMapper mapper = new ObjectMapper();
  private final Map figures = new ConcurrentHashMap();
  private volatile Map newest;
  private final String tick;
  private final MetricRegistry registry;

  private FilledProgress(ProgressReporter before, String tick, MetricRegistry registry)
      throws Exception {{
    super(
        (org.apache.spark.sql.classic.SparkSession) read(before, "sparkSession"),
        (org.apache.spark.util.Clock) read(before, "triggerClock"),
        before.logicalPlan());
    this.tick = tick;
    this.registry = registry;
    // What was reported so far, and whatever else there is, goes on.
    Field[] fields = ProgressReporter.class.getDeclaredFields();
    for (int i = 0; i < fields.length; i++) {{
      if (!Modifier.isStatic(fields[i].getModifiers())) {{
        fields[i].setAccessible(true);
        fields[i].set(this, fields[i].get(before));
      }}
    }}
  }}

  private static Object read(ProgressReporter owner, String name) throws Exception {{
    Field field = ProgressReporter.class.getDeclaredField(name);
    field.setAccessible(true);
    return field.get(owner);
  }}

  public void put(long batch, String text) {{ figures.put(Long.valueOf(batch), text); }}

  public void updateProgress(StreamingQueryProgress progress) {{
    super.updateProgress(filled(progress, true));
  }}

  public void updateIdleness(UUID id, UUID runId, long begun, StreamingQueryProgress progress) {{
    super.updateIdleness(id, runId, begun, filled(progress, false));
  }}

  private StreamingQueryProgress filled(StreamingQueryProgress progress, boolean ran) {{
    try {{
      Object text = figures.remove(Long.valueOf(progress.batchId()));
      if (text != null) {{
        newest = (Map) mapper.readValue((String) text, Map.class);
        register();
      }}
      Map given = newest;
      if (given == null || (ran && text == null)) {{ return progress; }}
      return with(progress, given, ran);
    }} catch (Exception error) {{
      return progress;
    }}
  }}

  private StreamingQueryProgress with(StreamingQueryProgress progress, Map given, boolean ran)
      throws Exception {{
    Map observed = new HashMap(progress.observedMetrics());
    if (ran) {{
      StructType schema = new StructType().add("json", "string");
      Object[] values = new Object[] {{given.get("section")}};
      observed.put("{OBSERVED}", new GenericRowWithSchema(values, schema));
    }}
    return new StreamingQueryProgress(
        progress.id(), progress.runId(), progress.name(), progress.timestamp(),
        progress.batchId(), progress.batchDuration(), progress.durationMs(),
        progress.eventTime(), operators(progress, given, ran), sources(progress),
        new SinkProgress(
            (String) given.get("sink"), ran ? number(given, "numOutputRows") : 0L,
            (Map) given.get("sinkMetrics")),
        observed);
  }}

  private StateOperatorProgress[] operators(
      StreamingQueryProgress progress, Map given, boolean ran) throws Exception {{
    ArrayList all = new ArrayList(java.util.Arrays.asList((Object[]) progress.stateOperators()));
    Iterator each = ((List) given.get("stateOperators")).iterator();
    while (each.hasNext()) {{
      Map own = (Map) each.next();
      HashMap custom = new HashMap();
      Iterator entries = ((Map) own.get("customMetrics")).entrySet().iterator();
      while (entries.hasNext()) {{
        java.util.Map.Entry entry = (java.util.Map.Entry) entries.next();
        custom.put(entry.getKey(), Long.valueOf(((Number) entry.getValue()).longValue()));
      }}
      all.add(operator(new Object[] {{
          own.get("operatorName"),
          boxed(own, "numRowsTotal", true), boxed(own, "numRowsUpdated", ran),
          boxed(own, "allUpdatesTimeMs", true), boxed(own, "numRowsRemoved", ran),
          boxed(own, "allRemovalsTimeMs", true), boxed(own, "commitTimeMs", true),
          boxed(own, "memoryUsedBytes", true), boxed(own, "numRowsDroppedByWatermark", ran),
          boxed(own, "numShufflePartitions", true), boxed(own, "numStateStoreInstances", true),
          custom, scala.collection.immutable.Set$.MODULE$.empty()}}));
    }}
    return (StateOperatorProgress[]) all.toArray(new StateOperatorProgress[0]);
  }}

  // From 4.3 on it is told as well which of the custom metrics go on without a batch.
  private static Object operator(Object[] values) throws Exception {{
    Constructor made = StateOperatorProgress.class.getDeclaredConstructors()[0];
    return made.newInstance(java.util.Arrays.copyOf(values, made.getParameterTypes().length));
  }}

  private static Long boxed(Map given, String name, boolean counts) {{
    return Long.valueOf(counts ? number(given, name) : 0L);
  }}

  private SourceProgress[] sources(StreamingQueryProgress progress) {{
    ArrayList shown = new ArrayList();
    SourceProgress[] all = progress.sources();
    for (int i = 0; i < all.length; i++) {{
      if (!all[i].description().equals(tick)) {{ shown.add(all[i]); }}
    }}
    return (SourceProgress[]) shown.toArray(new SourceProgress[0]);
  }}

  private static long number(Map given, String name) {{
    return ((Number) given.get(name)).longValue();
  }}

  private void register() {{
    if (registry == null) {{ return; }}
    Iterator names = ((Map) newest.get("gauges")).keySet().iterator();
    while (names.hasNext()) {{
      String name = (String) names.next();
      if (!registry.getNames().contains(name)) {{ registry.register(name, new Figure(name)); }}
    }}
  }}

  private class Figure implements Gauge {{
    private final String name;
    private Figure(String name) {{ this.name = name; }}
    public Object getValue() {{
      Object value = ((Map) newest.get("gauges")).get(name);
      return value == null ? Integer.valueOf(0) : value;
    }}
  }}

  public static class Installer {{
    public FilledProgress install(StreamExecution execution, String tick, boolean measured)
        throws Exception {{
      Field own = StreamExecution.class.getDeclaredField("progressReporter");
      own.setAccessible(true);
      MetricRegistry registry = measured ? execution.streamMetrics().metricRegistry() : null;
      FilledProgress filled =
          new FilledProgress((ProgressReporter) own.get(execution), tick, registry);
      own.set(execution, filled);
      // The batch that runs has been told whom to report to, and tells the next.
      Object context = execution.getLatestExecutionContext();
      for (Class each = context.getClass(); each != null; each = each.getSuperclass()) {{
        Field[] fields = each.getDeclaredFields();
        for (int i = 0; i < fields.length; i++) {{
          if (fields[i].getType() == ProgressReporter.class) {{
            fields[i].setAccessible(true);
            fields[i].set(context, filled);
          }}
        }}
      }}
      return filled;
    }}
  }}
}}
"""

log = logging.getLogger("braided")


class FilledProgress:
    """Fills the progress of one query."""

    def __init__(self, spark: SparkSession, bell: Bell) -> None:
        """The source of the bell, which has no rows and is nobody's but ours, is left out."""
        self._installer = java_object(
            spark, _SOURCE, "braided.FilledProgress$Installer", ships=False
        )
        self._bell = bell
        setting = spark.conf.get("spark.sql.streaming.metricsEnabled", "false")
        self.measured = str(setting).lower() == "true"
        """Whether Spark's metrics system is to have the figures."""
        self._reporter: Any = None
        self._failed = False

    def put(self, query: StreamingQuery, batch: int, text: str) -> None:
        """Leaves the figures of a batch of which Spark is about to make the progress."""
        if self._failed:
            return
        try:
            if self._reporter is None:
                installer, execution = self._installer.result(), query._jsq.streamingQuery()
                self._reporter = installer.install(execution, self._bell.source, self.measured)
            self._reporter.put(batch, text)
        except (PySparkException, Py4JError, OSError, TypeError) as error:
            # A class that is not there is a package to py4j, and can't be called.
            self._failed = True
            if query.isActive:
                why = str(error).splitlines()[:2]
                log.warning("Spark's progress has no figures of state: %s", " ".join(why))
