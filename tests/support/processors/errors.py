"""What users meet when something is wrong: both sides fail, and both name the thing.

Errors that a processor can catch are caught and shown by their presence, several in one query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.types import IntegerType, StructField, StructType

from support.processors.evolution import AVRO, One
from support.processors.scenario import Plain, Scenario, process, tried
from support.processors.shape import Count

__all__ = ["SCENARIOS"]


class Twice(Plain):
    def init(self, handle: StatefulProcessorHandle) -> None:
        handle.getValueState("doubled", "n int")
        handle.getValueState("doubled", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        return iter([])


class Expiring(Plain):
    def __init__(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        handle.getValueState("brief", "n int", self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        return iter([])


class Gives(Plain):
    """Gives rows that do not fit, or raises."""

    def __init__(self, what: Callable[[Any], Any]) -> None:
        self.what = what

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("state", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        yield self.what(self)


def _raises(_: Any) -> None:
    raise ValueError("this row is cursed")


class Caught(Plain):
    """Tries what can't be done, and goes on."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", "n int, s string")
        self.list = handle.getListState("list", "n int")
        self.map = handle.getMapState("map", "k string", "n int")
        self.deleted = {
            "a deleted value": handle.getValueState("deleted_value", "n int"),
            "a deleted list": handle.getListState("deleted_list", "n int"),
            "a deleted map": handle.getMapState("deleted_map", "k string", "n int"),
        }
        for name in ("deleted_value", "deleted_list", "deleted_map"):
            handle.deleteIfExists(name)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        if key[0] in self.deleted:
            state = self.deleted[key[0]]
            said = {call: tried(getattr(state, call), *given) for call, *given in DELETED[key[0]]}
            self.value.update((1, "still works"))
            yield Row(k=key[0], outcome=f"{said} {self.value.get()}")
            return
        tries: dict[str, Callable[[], Any]] = {
            "no value": lambda: self.value.update(None),
            "a list with no value": lambda: self.list.put([None]),
            "a map entry with no value": lambda: self.map.updateValue(("a",), None),
            "a map entry with no key": lambda: self.map.updateValue(None, (1,)),
            "a bare number": lambda: self.map.updateValue(("a",), 1),
        }
        self.list.put([(1,)])
        try:
            tries[key[0]]()
            outcome = "done"
        except Exception as error:
            outcome = type(error).__name__
        left = self.value.get(), list(self.list.get()), list(self.map.iterator())
        yield Row(k=key[0], outcome=f"{outcome} {left}")


DELETED: Mapping[str, tuple[tuple[Any, ...], ...]] = {
    "a deleted value": (("exists",), ("get",), ("update", (1,)), ("clear",)),
    "a deleted list": (
        *(("exists",), ("get",), ("put", [(1,)]), ("appendValue", (1,))),
        *(("appendList", [(1,)]), ("clear",)),
    ),
    "a deleted map": (
        *(("exists",), ("getValue", ("a",)), ("containsKey", ("a",))),
        *(("updateValue", ("a",), (1,)), ("iterator",), ("keys",), ("values",)),
        *(("removeKey", ("a",)), ("clear",)),
    ),
}
CAUGHT = (
    *DELETED,
    "no value",
    "a list with no value",
    "a map entry with no value",
    "a map entry with no key",
    "a bare number",
)


class Tries(Plain):
    """Does something that can't be done; natively even a processor that catches it is lost."""

    def __init__(self, what: Callable[[Any], Any]) -> None:
        self.what = what

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n int, s string")
        self.list = handle.getListState("list", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        self.what(self)
        return iter([])


_ROWS = ((("a", 1),),)
_IN = "k string, v int"
_OUT = "k string, n int"
_STRICT = StructType([StructField("n", IntegerType(), nullable=False)])


def _fails(name: str, processor: Any, fails: str, **more: Any) -> Scenario:
    conf = more.pop("conf", {})
    mode = more.pop("writer", "update")
    output = more.pop("output", _OUT)
    return Scenario(
        f"error: {name}",
        _IN,
        _ROWS,
        (process(processor, output, **more),),
        fails=fails,
        conf=conf,
        mode=mode,
    )


SCENARIOS = (
    Scenario(
        "errors that are caught",
        _IN,
        (tuple((name, 0) for name in CAUGHT),),
        (process(Caught(), "k string, outcome string"),),
        parts=CAUGHT,
    ),
    _fails("a variable defined twice", Twice(), r"doubled|crashed"),
    _fails("values that expire without processing time", Expiring(1000), r"(?i)ttl"),
    _fails(
        "a time mode that does not exist", Count(), r"(?i)time ?mode|NoSuchTime", time="NoSuchTime"
    ),
    _fails(
        "an output mode that does not exist",
        Count(),
        r"(?i)output ?mode|NoSuchMode",
        mode="NoSuchMode",
    ),
    _fails("complete mode", Count(), r"(?i)complete", mode="Complete", writer="complete"),
    _fails(
        "an output schema that does not parse",
        Count(),
        r"(?i)pars|syntax|datatype",
        output="k strin g x",
    ),
    _fails(
        "state that must not be null",
        One("value", _STRICT, (1,)),
        r"(?i)nullable",
        conf=AVRO,
        output="k string, found string",
    ),
    _fails(
        "a timer without a time mode",
        Tries(lambda p: p.handle.registerTimer(1)),
        r"(?i)timer|time ?mode",
    ),
    _fails(
        "a variable outside init",
        Tries(lambda p: p.handle.getValueState("late", "n int")),
        r"(?i)handle state|init",
    ),
    _fails("a value of too few fields", Tries(lambda p: p.value.update((1,))), r"(?i)field|value"),
    _fails("an empty list, put", Tries(lambda p: p.list.put([])), r"(?i)list|value"),
    _fails("the processor raises", Gives(_raises), "this row is cursed"),
    _fails("a row with a value of another type", Gives(lambda _: Row(k="a", n="many")), r"(?s)."),
    _fails(
        "state with a value of another type", Gives(lambda p: p.state.update(("many",))), r"(?s)."
    ),
    _fails(
        "a frame without a column",
        Gives(lambda _: pd.DataFrame({"k": ["a"]})),
        r"(?s)\bn\b",
        pandas=True,
    ),
    _fails(
        "a frame with a value of another type",
        Gives(lambda _: pd.DataFrame({"k": ["a"], "n": ["many"]})),
        r"(?s)many|int",
        pandas=True,
    ),
)
