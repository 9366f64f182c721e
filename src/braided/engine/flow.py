"""A flow: the source, the keyed operators in their order, and the stateless steps after each.

Stateless steps after an operator are recorded by the API and applied to each batch. Where order
columns must survive them, they are carried along: `select` gets them in front, a step that hides
its columns (`mapInPandas`) gets new ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from braided.api.operator import Operator, state_codec
from braided.engine.aggregation import Aggregation
from braided.engine.route import Keys, order_columns, quoted
from braided.errors import UnsupportedError

__all__ = ["AggregateStep", "Flow", "KeyedStep", "OperatorStep", "Stateless"]


@dataclass(frozen=True)
class Stateless:
    """One recorded DataFrame method."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def apply(self, df: DataFrame) -> DataFrame:
        """As the user wrote it."""
        result: DataFrame = getattr(df, self.method)(*self.args, **self.kwargs)
        return result

    def apply_ordered(self, df: DataFrame, order: int) -> DataFrame:
        """The same, with `order` columns in front that the user does not know of."""
        hidden = order_columns(order)
        own = [name for name in df.columns if name not in hidden]
        if self.method in ("select", "selectExpr"):
            wanted = [c for arg in self.args for c in (arg if isinstance(arg, list) else [arg])]
            spread: list[Any] = []
            for column in wanted:
                is_star = column == "*" if isinstance(column, str) else _is_star(column)
                spread.extend(map(quoted, own) if is_star else [column])
            if self.method == "selectExpr":
                spread = [F.expr(c) for c in spread]
            return df.select(*hidden, *spread)
        if self.method == "toDF":
            return df.toDF(*hidden, *self.args)
        if self.method in ("dropna", "fillna", "replace"):
            method = getattr(DataFrame, self.method)
            call = inspect.signature(method).bind(df, *self.args, **self.kwargs)
            if call.arguments.get("subset") is None:
                call.arguments["subset"] = [quoted(name) for name in own]
            filled: DataFrame = method(*call.args, **call.kwargs)
            return filled
        if self.method in _OPAQUE:
            # The function sees its own columns only. What it gives out is in the order of the task.
            given = self.apply(df.drop(*hidden))
            fresh = [f"bigint(0) AS {name}" for name in hidden[:-1]]
            last = f"monotonically_increasing_id() AS {hidden[-1]}"
            return given.selectExpr(*fresh, last, "*")
        result = self.apply(df)
        if self.method in ("join", "crossJoin"):
            names = result.columns
            if names[:order] != hidden:
                own = [quoted(name) for name in names if name not in hidden]
                return result.select(*hidden, *own)
        return result


_OPAQUE = ("mapInPandas", "mapInArrow")


def _is_star(column: Column) -> bool:
    text = str(column._jc)
    return text in ("*", "unresolvedstar()")


@dataclass(frozen=True)
class OperatorStep:
    """A keyed, stateful step and what follows it before the next one."""

    name: str
    operator: type[Operator]
    keys: Keys
    key_schema: StructType
    input: StructType
    output: StructType
    time_mode: str
    after: tuple[Stateless, ...] = ()

    @property
    def label(self) -> str:
        return self.operator.__name__

    @property
    def arriving(self) -> StructType:
        """The columns of the rows that its tasks get."""
        return self.input

    @property
    def state(self) -> str:
        """The fields of its state, as a checkpoint records them."""
        return state_codec(self.operator).describe()

    @property
    def codec(self) -> str:
        """The encoding of its state, as a checkpoint records it."""
        return "msgpack-1"

    @property
    def fires(self) -> bool:
        """Whether timers of its state lead to work."""
        return hasattr(self.operator, "onTimer")

    @property
    def drops_late_rows(self) -> bool:
        """Whether rows behind the watermark are dropped before they reach it."""
        return self.time_mode == "EventTime"


@dataclass(frozen=True)
class AggregateStep:
    """A keyed aggregation and what follows it before the next step."""

    name: str
    aggregation: Aggregation
    after: tuple[Stateless, ...] = ()
    mode: str = "append"
    """Spark's output mode."""
    drops_late_rows: bool = False
    """Never: what is late goes by the window and not by the row."""

    @property
    def label(self) -> str:
        return "agg"

    @property
    def arriving(self) -> StructType:
        fields = self.aggregation.columns.fields
        # A window is two columns as far as its width goes.
        inner = [f.dataType.fields if isinstance(f.dataType, StructType) else [f] for f in fields]
        return StructType([field for columns in inner for field in columns])

    @property
    def key_schema(self) -> StructType:
        return self.aggregation.key

    @property
    def output(self) -> StructType:
        return self.aggregation.output

    @property
    def time_mode(self) -> str:
        return "ProcessingTime" if self.aggregation.event_time is None else "EventTime"

    @property
    def state(self) -> str:
        width = len(self.aggregation.groups)
        kinds = [f.dataType.simpleString() for f in self.aggregation.columns.fields[width:]]
        rules = [f"{part.rule} {part.name}" for part in self.aggregation.parts]
        return f"{', '.join(rules)}: {', '.join(kinds)}"

    @property
    def codec(self) -> str:
        return "columns-1"

    @property
    def fires(self) -> bool:
        return self.time_mode == "EventTime" and self.mode != "complete"


KeyedStep = OperatorStep | AggregateStep


@dataclass(frozen=True)
class Flow:
    """What `writeStream.start()` runs."""

    source: DataFrame
    steps: tuple[KeyedStep, ...]
    late: Callable[[int], str] | None
    """SQL that keeps the rows that are not late, given the watermark in ms; None without one."""

    def check_order_survives(self) -> None:
        """Refuses steps after which the order of input is lost."""
        for step in self.steps:
            for after in step.after:
                if after.method in _OPAQUE:
                    raise UnsupportedError(
                        f"{after.method}() after operator {step.name!r} with "
                        "braided.orderPreserving: what the "
                        "function gives out has no order any more. Do it in the operator, "
                        "or before it"
                    )
