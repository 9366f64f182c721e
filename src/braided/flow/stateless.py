"""Stateless steps after an operator: DataFrame methods, recorded once, applied to each batch.

Where order columns must survive a step they are carried along: `select` gets them as well, a
step that hides its columns (`mapInPandas`) gets new ones, and a step that makes several rows of
one (`explode`, a join) gets one more, so that these have an order too.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from braided.spark.sql_text import column_text, quoted
from braided.tasks.columns import order_columns

__all__ = ["Stateless"]

_QUOTED = re.compile(r"'[^']*'")
_NESTED_STAR = re.compile(r"[(,]\s*\*\s*[,)]")
_OPAQUE = ("mapInPandas", "mapInArrow")


@dataclass(frozen=True)
class Stateless:
    """One recorded DataFrame method."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    multiplies: bool = False
    """Whether one row may become several."""

    @property
    def is_opaque(self) -> bool:
        """Whether what it gives out has no order any more."""
        return self.method in _OPAQUE

    @property
    def nests_star(self) -> bool:
        """Whether it has a star inside an expression, which would take in hidden columns."""
        values = [*self.args, *self.kwargs.values()]
        columns = [c for v in values for c in (v if isinstance(v, list | tuple) else [v])]
        columns += [c for v in values if isinstance(v, dict) for c in v.values()]
        texts = [column_text(c) for c in columns if isinstance(c, str | Column)]
        return any(_NESTED_STAR.search(_QUOTED.sub("", text)) for text in texts)

    def order(self, before: int) -> int:
        """How many order columns there are after it."""
        return before + 1 if before and self.multiplies else before

    def apply(self, df: DataFrame, order: int = 0) -> DataFrame:
        """As the user wrote it, beside `order` columns that the user does not know of."""
        if not order:
            result: DataFrame = getattr(df, self.method)(*self.args, **self.kwargs)
            return result
        result = self._apply_beside_hidden(df, order_columns(order))
        if self.multiplies:
            last = order_columns(order + 1)[-1]
            result = result.selectExpr(f"monotonically_increasing_id() AS {last}", "*")
        return result

    def _apply_beside_hidden(self, df: DataFrame, hidden: list[str]) -> DataFrame:
        own = [name for name in df.columns if name not in hidden]
        if self.method in ("select", "selectExpr"):
            return df.select(*hidden, *self._selected(own))
        if self.method == "toDF":
            given = iter(self.args)
            return df.toDF(*[name if name in hidden else next(given) for name in df.columns])
        if self.method in ("dropna", "fillna", "replace"):
            method = getattr(DataFrame, self.method)
            call = inspect.signature(method).bind(df, *self.args, **self.kwargs)
            if call.arguments.get("subset") is None:
                call.arguments["subset"] = [quoted(name) for name in own]
            filled: DataFrame = method(*call.args, **call.kwargs)
            return filled
        if self.is_opaque:
            # The function sees its own columns only. What it gives out is in the order of the task.
            outcome = self.apply(df.drop(*hidden))
            fresh = [f"bigint(0) AS {name}" for name in hidden[:-1]]
            last = f"monotonically_increasing_id() AS {hidden[-1]}"
            return outcome.selectExpr(*fresh, last, "*")
        return self.apply(df)

    def _selected(self, own: list[str]) -> list[Any]:
        wanted = [c for arg in self.args for c in (arg if isinstance(arg, list) else [arg])]
        spread: list[Any] = []
        for column in wanted:
            is_star = column == "*" if isinstance(column, str) else _is_star(column)
            spread.extend(map(quoted, own) if is_star else [column])
        return [F.expr(c) for c in spread] if self.method == "selectExpr" else spread


def _is_star(column: Column) -> bool:
    return column_text(column) in ("*", "unresolvedstar()")
