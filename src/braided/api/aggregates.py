"""`groupBy(...).agg(...)` and its short forms, as Spark's GroupedData has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType

from braided.errors import DefinitionError, UnsupportedError
from braided.flow.step import KeyedStep
from braided.kinds.aggregate.aggregation import Aggregation
from braided.kinds.aggregate.step import AggregateStep
from braided.spark.sql_text import quoted

if TYPE_CHECKING:
    from braided.api.stream import Stream

__all__ = ["Aggregating"]


class Aggregating:
    """Aggregates of a grouped stream. Its state moves like any other."""

    _stream: Stream
    _cols: list[str | Column]

    def _then(self, step: KeyedStep) -> Stream:
        raise NotImplementedError

    def agg(self, *exprs: Column | dict[str, str], subKeys: int = 1) -> Stream:
        """Aggregates, as `GroupedData.agg`: columns, or one dict of column name to function name.

        `subKeys` merges the partial results of a key in so many tasks before its channel gets
        them. It pays when one key has partial results from very many input partitions, or when
        they do not get smaller by merging (`collect_set`).
        """
        if isinstance(subKeys, bool) or not isinstance(subKeys, int) or not 1 <= subKeys <= 1024:
            raise DefinitionError(f"agg: subKeys is {subKeys!r}; it takes a number from 1 to 1024")
        columns = _columns_of(exprs)
        shape = self._stream._shape
        if any("session_window(" in str(c if isinstance(c, str) else c._jc) for c in self._cols):
            raise UnsupportedError(
                "agg by session_window: a session grows and merges with its neighbours; "
                "examples/sessions.py is one as an Operator"
            )
        try:
            aggregation = Aggregation(shape, self._cols, columns, subKeys)
        except PySparkException as error:
            raise DefinitionError(f"agg: {error}") from None
        for name in aggregation.output.names:
            if name.startswith("__braided_"):
                raise DefinitionError(f"column names like {name!r} are taken")
        return self._then(AggregateStep("agg", aggregation, shape.schema))

    def count(self) -> Stream:
        return self.agg(F.count(F.lit(1)).alias("count"))

    def sum(self, *cols: str) -> Stream:
        return self._each(F.sum, cols)

    def avg(self, *cols: str) -> Stream:
        return self._each(F.avg, cols)

    def mean(self, *cols: str) -> Stream:
        return self._each(F.avg, cols)

    def min(self, *cols: str) -> Stream:
        return self._each(F.min, cols)

    def max(self, *cols: str) -> Stream:
        return self._each(F.max, cols)

    def _each(self, function: Any, cols: tuple[str, ...]) -> Stream:
        """The function over these columns; over all that hold numbers, if none are named."""
        shape = self._stream._shape
        fields = shape.schema.fields
        numeric = [field.name for field in fields if isinstance(field.dataType, NumericType)]
        return self.agg(*[function(F.col(quoted(name))) for name in (cols or numeric)])


def _columns_of(exprs: tuple[Column | dict[str, str], ...]) -> list[Column]:
    if not exprs:
        raise DefinitionError("agg needs at least one aggregate")
    if len(exprs) == 1 and isinstance(exprs[0], dict):
        return [
            F.expr(f"{function}({name if name == '*' else quoted(name)})")
            for name, function in exprs[0].items()
        ]
    for expr in exprs:
        if not isinstance(expr, Column):
            raise DefinitionError(
                f"agg takes columns, such as F.sum('x'), or one dict; not {expr!r}"
            )
    return [expr for expr in exprs if isinstance(expr, Column)]
