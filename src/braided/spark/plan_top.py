"""What was planned on top of one batch's rows, put over those of the next.

Each step that is added to a DataFrame has Spark look through the whole plan again. The rows of a
batch come in a new plan with the same columns as before, to the very identity by which expressions
refer to them. So what stands above them fits as it is, and Spark looks through all of it once.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from braided.spark.java_classes import java_object

__all__ = ["PlanTop", "PlanTops"]

_SOURCE = """
package braided;

import java.util.ArrayList;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;

public class PlanTop {
  private final ArrayList nodes = new ArrayList();
  private final Object columns;

  // From the node on top down to the rows, which are not part of it.
  private PlanTop(LogicalPlan top, LogicalPlan rows) {
    columns = rows.output();
    LogicalPlan node = top;
    while (node != rows && !node.equals(rows)) {
      if (node.children().size() != 1) { throw new IllegalArgumentException("the plan forks"); }
      nodes.add(node);
      node = (LogicalPlan) node.children().head();
    }
    // Over nothing, or the rows of that batch would be kept as long as the nodes.
    LogicalPlan nothing =
        new LocalRelation(rows.output(), sequence(new ArrayList()), false, scala.Option.empty());
    for (int i = nodes.size() - 1; i >= 0; i--) {
      nothing = above((LogicalPlan) nodes.get(i), nothing);
      nodes.set(i, nothing);
    }
  }

  public Dataset over(Dataset frame) {
    LogicalPlan plan = frame.queryExecution().analyzed();
    if (!plan.output().equals(columns)) { return null; }
    for (int i = nodes.size() - 1; i >= 0; i--) { plan = above((LogicalPlan) nodes.get(i), plan); }
    return Dataset.ofRows(frame.sparkSession(), plan);
  }

  private static LogicalPlan above(LogicalPlan node, LogicalPlan child) {
    ArrayList children = new ArrayList();
    children.add(child);
    return (LogicalPlan) node.withNewChildren(sequence(children));
  }

  private static scala.collection.immutable.Seq sequence(ArrayList items) {
    return scala.jdk.javaapi.CollectionConverters.asScala(items).toSeq();
  }

  public static class Maker implements java.util.function.BiFunction {
    public Object apply(Object made, Object frame) {
      return new PlanTop(
          ((Dataset) made).queryExecution().analyzed(),
          ((Dataset) frame).queryExecution().analyzed());
    }
  }
}
"""


class PlanTop:
    """The part of a plan that stands above some rows."""

    def __init__(self, kept: Any) -> None:
        self._kept = kept

    def over(self, frame: DataFrame) -> DataFrame | None:
        """The same of other rows; None if these have columns that are not those of the first."""
        jdf = self._kept.over(frame._jdf)
        return None if jdf is None else DataFrame(jdf, frame.sparkSession)


class PlanTops:
    """Keeps the tops of plans, every step of which has one child."""

    def __init__(self, spark: SparkSession) -> None:
        self._maker = java_object(spark, _SOURCE, "braided.PlanTop$Maker", ships=False)

    def of(self, made: DataFrame, frame: DataFrame) -> PlanTop | None:
        """What was made of a frame; None as long as what keeps it is still being compiled, for
        which no batch waits, and where that failed.
        """
        if not self._maker.done() or self._maker.exception() is not None:
            return None
        return PlanTop(self._maker.result().apply(made._jdf, frame._jdf))
