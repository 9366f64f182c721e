"""What the comparison of `StatefulProcessor`s on Spark and on Braided is made of.

A `Scenario` is one query told twice: a processor, its input batch by batch, and what is compared.
A `Script` is smaller: what one key does to one state variable. Scripts of a kind share a query,
in which each is a key of its own, since a native batch costs a second however little it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import FunctionType
from typing import Any, Literal

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

__all__ = [
    "Initial",
    "Operator",
    "Plain",
    "Scenario",
    "Script",
    "Scripted",
    "ScriptedInPandas",
    "Variable",
    "at",
    "process",
    "script_scenario",
    "shown",
    "tried",
]

Schema = str | StructType
Rows = Sequence[tuple[Any, ...]]


def at(second: float) -> datetime:
    """An event time: so many seconds after an hour of 2024, UTC."""
    return datetime(2024, 5, 1, 12) + timedelta(seconds=second)


@dataclass(frozen=True)
class Initial:
    """Rows with which the state starts, grouped by columns."""

    schema: str
    rows: Rows
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Operator:
    """One call of transformWithState or its like; `call` has the keyword arguments of Spark."""

    keys: tuple[str, ...]
    method: Literal["transformWithState", "transformWithStateInPandas", "applyInPandasWithState"]
    call: Mapping[str, Any]
    initial: Initial | None = None
    before: Callable[[Any], Any] | None = None
    """Stateless steps between the operator before and this one; of a DataFrame or a Stream."""


@dataclass(frozen=True)
class Scenario:
    """A query that is run natively and on Braided, step by step, on the same files.

    A step is a batch of rows, everything that follows from it, and an action before it: nothing, a
    restart, or a restart with other operators (`restarts`). Braided is also rescaled and
    rebalanced between steps.
    """

    name: str
    schema: str | StructType
    steps: tuple[Rows, ...]
    operators: tuple[Operator, ...]
    mode: str = "update"
    """The writer's output mode."""
    prepare: Callable[[DataFrame], DataFrame] | None = None
    """What happens to the rows before the first operator: a watermark, usually."""
    finish: Callable[[Any], Any] | None = None
    """Stateless steps after the last operator; of a DataFrame or a Stream."""
    restarts: Mapping[int, tuple[Operator, ...] | None] = field(default_factory=dict)
    """Before which steps both sides are stopped and started, with which operators."""
    whole: bool = False
    """Compares all output at once: by wall clock a timer may fire a step earlier or later."""
    ordered: bool = False
    """Compares the order of rows of a step too; for a single key."""
    batch: bool = False
    """On a batch DataFrame of all steps, without a query."""
    fails: str | None = None
    """What both sides say when they fail, as a regular expression."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of the session."""
    parts: tuple[str, ...] = ()
    """Scenarios that share this query: keys, the first column of the output, that are compared
    each by itself. Other keys are there to move things on."""

    def __str__(self) -> str:
        return self.name


# -- scripts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variable:
    """A state variable: its kind and schemas, and how long values live."""

    kind: Literal["value", "list", "map"]
    schema: Schema
    key_schema: Schema = "key string"
    ttl_ms: int | None = None

    def define(self, handle: StatefulProcessorHandle, name: str) -> Any:
        match self.kind:
            case "value":
                return handle.getValueState(name, self.schema, self.ttl_ms)
            case "list":
                return handle.getListState(name, self.schema, self.ttl_ms)
            case _:
                return handle.getMapState(name, self.key_schema, self.schema, self.ttl_ms)


Call = tuple[Any, ...]
"""A method's name and its arguments; a large one is given as a function that makes it, because
Spark sends a processor of more than a megabyte as a broadcast, which its driver can't read."""


@dataclass(frozen=True)
class Script:
    """What one key does to a variable, batch by batch; every result is compared."""

    name: str
    variable: Variable
    batches: tuple[tuple[Call, ...], ...]


def shown(value: Any) -> str:
    """A value with its types; the entries of a dict come in no order."""
    match value:
        case dict():
            entries = sorted(f"{shown(key)}: {shown(item)}" for key, item in value.items())
            return f"{{{', '.join(entries)}}}"
        case Row() if hasattr(value, "__fields__"):
            fields = zip(value.__fields__, value, strict=True)
            return f"Row({', '.join(f'{name}={shown(item)}' for name, item in fields)})"
        case list() | tuple():
            return f"{type(value).__name__}({', '.join(map(shown, value))})"
    return repr(value)


def tried(call: Callable[..., Any], *arguments: Any) -> str:
    """What a call gives, or what it raises."""
    try:
        result = call(*arguments)
        return shown(list(result) if isinstance(result, Iterator) else result)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _perform(state: Any, call: Call) -> str:
    """The result as text; what a map holds comes in no order."""
    method, *given = call
    arguments = [g() if isinstance(g, FunctionType) else g for g in given]
    match method:
        case "pairs":  # two iterators at once do not disturb each other
            return shown(list(zip(state.get(), state.get(), strict=True)))
        case "first":  # an iterator that is left unfinished
            return shown(next(iter(state.get()), None))
        case _:
            result = getattr(state, method)(*arguments)
    if method in ("iterator", "keys", "values"):
        return repr(sorted(map(shown, result)))
    if method == "get" and not isinstance(result, tuple | None):
        return shown(list(result))
    return shown(result)


class Scripted(StatefulProcessor):
    """Does what the script of the key says; a row of input names a call by batch and number."""

    def __init__(self, scripts: Sequence[Script]) -> None:
        self.scripts = {script.name: script for script in scripts}

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.states = {
            name: script.variable.define(handle, f"v{number}")
            for number, (name, script) in enumerate(self.scripts.items())
        }

    def perform(self, name: str, batch: int, n: int) -> str:
        return _perform(self.states[name], self.scripts[name].batches[batch][n])

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in sorted(rows, key=lambda r: r.n):
            yield Row(k=key[0], n=row.n, result=self.perform(key[0], row.batch, row.n))

    def close(self) -> None:
        pass


class ScriptedInPandas(Scripted):
    """The same with frames in and out."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        calls = pd.concat(list(rows)).sort_values("n")
        results = [
            self.perform(key[0], int(batch), int(n))
            for batch, n in zip(calls["batch"], calls["n"], strict=True)
        ]
        yield pd.DataFrame({"k": key[0], "n": calls["n"].to_numpy(), "result": results})


def script_scenario(
    name: str, scripts: Sequence[Script], *, in_pandas: bool, **more: Any
) -> Scenario:
    """One query for several scripts; a script that is shorter than others ends earlier."""
    processor = ScriptedInPandas(scripts) if in_pandas else Scripted(scripts)
    timed = any(script.variable.ttl_ms is not None for script in scripts)
    length = max(len(script.batches) for script in scripts)
    steps = tuple(
        tuple(
            (script.name, batch, n)
            for script in scripts
            if batch < len(script.batches)
            for n in range(len(script.batches[batch]))
        )
        for batch in range(length)
    )
    return Scenario(
        name=name,
        parts=tuple(script.name for script in scripts),
        schema="k string, batch int, n int",
        steps=steps,
        operators=(
            process(
                processor,
                "k string, n int, result string",
                pandas=in_pandas,
                time="ProcessingTime" if timed else "None",
            ),
        ),
        **more,
    )


def process(
    processor: StatefulProcessor,
    output: Schema,
    *keys: str,
    pandas: bool = False,
    time: str = "None",
    mode: str = "Update",
    initial: Initial | None = None,
    before: Callable[[Any], Any] | None = None,
    **more: Any,
) -> Operator:
    """A call of transformWithState, in rows or in pandas."""
    return Operator(
        keys=keys or ("k",),
        method="transformWithStateInPandas" if pandas else "transformWithState",
        call={
            "statefulProcessor": processor,
            "outputStructType": output,
            "outputMode": mode,
            "timeMode": time,
            **more,
        },
        initial=initial,
        before=before,
    )


class Plain(StatefulProcessor):
    """What most processors of the scenarios have in common: nothing to close."""

    def close(self) -> None:
        pass
