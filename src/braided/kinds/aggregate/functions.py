"""Spark's aggregate functions, each as partial results, a rule that merges them, and a last step.

The partial results are ordinary aggregates that Spark computes for every batch;
`store/aggregates/merge.py` merges them into the state; the last step is an ordinary expression on
the merged columns. Where Spark's own last step is more than a column (averages, variances), it is
used as it is, so that types and rounding are Spark's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import (
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    NumericType,
    TimestampType,
    YearMonthIntervalType,
    _has_type,
)

from braided.errors import UnsupportedError

__all__ = ["ORDER", "Call", "Recipe", "recipe_of"]

ORDER = "__braided_order"
"""An array that orders the rows of a batch."""


@dataclass(frozen=True)
class Call:
    """One aggregate function as the user called it."""

    function: Any
    """Spark's object for it."""
    text: str
    arguments: tuple[str, ...]
    """Names of the columns that hold its arguments."""
    types: tuple[DataType, ...]
    condition: str | None
    """The name of the column that its FILTER clause is in."""
    ansi: bool

    def over(self, aggregate: str, also: str | None = None) -> str:
        """SQL of an aggregate over the rows that the call looks at."""
        conditions = [c for c in (self.condition, also) if c is not None]
        return f"{aggregate} FILTER (WHERE {' AND '.join(conditions)})" if conditions else aggregate


@dataclass(frozen=True)
class Recipe:
    """What becomes of a call."""

    partials: tuple[str, ...]
    """SQL of the partial results, one column each."""
    rules: tuple[tuple[str, int], ...]
    """Rules for these columns in turn, and how many each takes."""
    result: str | None = "{0}"
    """SQL of the result, in terms of the columns; None for Spark's own last step, which takes them
    for its buffer.
    """
    ordered: bool = False
    """Whether the partial results need the order of rows."""


def recipe_of(call: Call) -> Recipe:
    """How a call is computed; refused with a sentence if it can't be."""
    name = call.function.getClass().getSimpleName()
    make = _RECIPES.get(name)
    if make is None:
        why = _WHY_NOT.get(name, "there is no rule yet that merges its partial results")
        raise UnsupportedError(
            f"agg({call.text}): {why}. Keep it in an Operator (.apply), or aggregate natively "
            "before braided.stream"
        )
    return make(call)


# --- sums and counts --------------------------------------------------------------------------


def _sum(call: Call) -> Recipe:
    _refuse_try(call)
    kind, (x,) = call.types[0], call.arguments
    if isinstance(kind, DecimalType):
        if call.ansi:
            return Recipe((call.over(f"sum({x})"),), (("add_decimals_checked", 1),))
        counted = (call.over(f"sum({x})"), call.over(f"count({x})"))
        return Recipe(counted, (("add_decimals", 2),))
    _refuse_intervals(call)
    checked = call.ansi and not isinstance(kind, DoubleType | FloatType)
    return Recipe((call.over(f"sum({x})"),), (("add_checked" if checked else "add", 1),))


def _count(call: Call) -> Recipe:
    columns = ", ".join(call.arguments) or "1"
    return Recipe((call.over(f"count({columns})"),), (("add", 1),))


def _average(call: Call) -> Recipe:
    _refuse_try(call)
    _refuse_intervals(call)
    (x,) = call.arguments
    if isinstance(call.types[0], DecimalType):
        total, rule = f"sum({x})", "add_decimals_checked"
        if not call.ansi:
            raise UnsupportedError(
                f"agg({call.text}): averages of decimals need spark.sql.ansi.enabled, as without "
                "it an overflow would pass for no value. Average doubles instead"
            )
    else:
        total, rule = f"sum(double({x}))", "add"
    partials = call.over(total), call.over(f"count({x})")
    return Recipe(partials, ((rule, 1), ("add", 1)), None)


def _moments(call: Call) -> Recipe:
    x = f"double({call.arguments[0]})"
    count = call.over(f"count({x})")
    partials = (
        f"double({count})",
        f"coalesce({call.over(f'avg({x})')}, 0D)",
        f"coalesce({call.over(f'var_pop({x})')} * {count}, 0D)",
    )
    return Recipe(partials, (("moments", 3),), None)


# --- one of many ------------------------------------------------------------------------------


def _least(call: Call) -> Recipe:
    return Recipe((call.over(f"min({call.arguments[0]})"),), (("min", 1),))


def _greatest(call: Call) -> Recipe:
    return Recipe((call.over(f"max({call.arguments[0]})"),), (("max", 1),))


def _by_order(rule: str, pick: str) -> Callable[[Call], Recipe]:
    def make(call: Call) -> Recipe:
        x = call.arguments[0]
        known = f"{x} IS NOT NULL" if call.function.ignoreNulls() else None
        found = call.over(f"{pick}(struct({x} AS v), {ORDER})", known)
        return Recipe((f"({found}).v", f"({found}) IS NOT NULL"), ((rule, 2),), ordered=True)

    return make


def _extreme_by(rule: str, order: str) -> Callable[[Call], Recipe]:
    def make(call: Call) -> Recipe:
        if len(call.arguments) != 2:
            raise UnsupportedError(
                f"agg({call.text}): {rule} takes a value and what it is ordered by; for the first "
                "few of them use collect_list, or an Operator"
            )
        x, y = call.arguments
        # Of equals, the last in order: in Spark it is the last that happened to come.
        picked = f"{rule}(struct({x} AS v, {y} AS w), struct({y} AS y, {order} AS o))"
        found = call.over(picked, f"{y} IS NOT NULL")
        return Recipe((f"({found}).v", f"({found}).w"), ((rule, 2),), ordered=True)

    return make


# --- collections and sketches -----------------------------------------------------------------


def _list(call: Call) -> Recipe:
    x = call.arguments[0]
    if _has_type(call.types[0], MapType):
        raise UnsupportedError(
            f"agg({call.text}): maps can't be kept as state; collect map_entries(...) of them"
        )
    rows = call.over(f"collect_list(struct({ORDER} AS o, {x} AS v))", f"{x} IS NOT NULL")
    return Recipe((f"transform(sort_array({rows}), e -> e.v)",), (("list", 1),), ordered=True)


def _set(call: Call) -> Recipe:
    return Recipe((call.over(f"collect_set({call.arguments[0]})"),), (("union", 1),))


def _distinct_count(call: Call) -> Recipe:
    x = call.arguments[0]
    # One step finer than the error asked for takes.
    exact = 2 * math.log2(1.04 / call.function.relativeSD()) + 1
    buckets = min(max(math.ceil(exact), 4), 21)
    # Spark's sketch takes numbers and text only, and a hash of anything is a number.
    value = f"CASE WHEN {x} IS NOT NULL THEN xxhash64({x}) END"
    partial = call.over(f"hll_sketch_agg({value}, {buckets})")
    return Recipe((partial,), (("hll", 1),), "hll_sketch_estimate({0})")


def _percentile(call: Call) -> Recipe:
    kind, x = call.types[0], call.arguments[0]
    if isinstance(kind, DateType):
        number, back = f"double(unix_date({x}))", "date_from_unix_date(int({q}))"
    elif isinstance(kind, TimestampType):
        number, back = f"double(unix_micros({x}))", "timestamp_micros(bigint({q}))"
    elif isinstance(kind, NumericType):
        number, back = f"double({x})", f"CAST({{q}} AS {kind.simpleString()})"
    else:
        raise UnsupportedError(
            f"agg({call.text}): percentiles of {kind.simpleString()} are not supported; cast the "
            "column to double"
        )
    accuracy = float(call.function.accuracyExpression().eval(None))
    # The error of a KLL sketch is about 2.3 / k^0.9; 65,535 is the largest that there is.
    size = min(max(math.ceil((2.3 * accuracy) ** (1 / 0.9)), 8), 65_535)
    wanted = call.function.percentageExpression()
    many = wanted.dataType().simpleString().startswith("array")
    ranks = f"CAST({wanted.sql()} AS {'array<double>' if many else 'double'})"
    quantile = f"kll_sketch_get_quantile_double({{0}}, {ranks})"
    shown = f"transform({quantile}, q -> {back})" if many else back
    shown = shown.replace("{q}", "q" if many else quantile)
    partial = call.over(f"kll_sketch_agg_double({number}, {size})")
    result = f"CASE WHEN kll_sketch_get_n_double({{0}}) > 0 THEN {shown} END"
    return Recipe((partial,), (("kll", 1),), result)


_RECIPES: dict[str, Callable[[Call], Recipe]] = {
    "Sum": _sum,
    "Count": _count,
    "Average": _average,
    "Min": _least,
    "Max": _greatest,
    "VariancePop": _moments,
    "VarianceSamp": _moments,
    "StddevPop": _moments,
    "StddevSamp": _moments,
    "First": _by_order("first", "min_by"),
    "Last": _by_order("last", "max_by"),
    "MaxBy": _extreme_by("max_by", ORDER),
    "MinBy": _extreme_by("min_by", f"transform({ORDER}, o -> ~o)"),
    "CollectList": _list,
    "CollectSet": _set,
    "HyperLogLogPlusPlus": _distinct_count,
    "ApproximatePercentile": _percentile,
}

_ALL_VALUES = "it needs every value that a key ever had; percentile_approx keeps a sketch of them"
_WHY_NOT = {
    "Percentile": _ALL_VALUES,
    "PercentileCont": _ALL_VALUES,
    "PercentileDisc": _ALL_VALUES,
    "Median": _ALL_VALUES,
    "Mode": "it needs a count of every value that a key ever had",
    "PythonUDAF": "what a Python function makes of a group can't be merged with the next batch's",
    "ListAgg": "collect_list keeps the values in order; join them after it with array_join",
}


def _refuse_try(call: Call) -> None:
    if call.function.prettyName().startswith("try_"):
        raise UnsupportedError(
            f"agg({call.text}): a sum that may turn into null is not kept; use sum or avg"
        )


def _refuse_intervals(call: Call) -> None:
    if isinstance(call.types[0], DayTimeIntervalType | YearMonthIntervalType):
        raise UnsupportedError(
            f"agg({call.text}): sums of intervals are not supported; sum the seconds or months"
        )
