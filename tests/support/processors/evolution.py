"""Processors that come back changed: state with other fields, more variables, fewer.

Natively fields may change where state is encoded as Avro, which is what these queries ask for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from support.processors.clocks import STILL
from support.processors.scenario import Plain, Scenario, process, tried

__all__ = ["SCENARIOS"]

AVRO = {"spark.sql.streaming.stateStore.encodingFormat": "avro"}

BEFORE = {
    "adds fields": "n int, s string",
    "removes a field": "n int, s string",
    "reorders fields": "n int, s string",
    "widens fields": "n int, s float",
    "adds in a struct": "n int, s struct<x: int>",
    "stays": "n int, s string",
}
AFTER = {
    "adds fields": "n int, s string, more array<int>, flag boolean",
    "removes a field": "n int",
    "reorders fields": "s string, n int",
    "widens fields": "n long, s double",
    "adds in a struct": "n int, s struct<x: int, y: string>",
    "stays": "n int, s string",
}
WRITES_BEFORE: Mapping[str, tuple[Any, ...]] = {
    "adds fields": (1, "a"),
    "removes a field": (2, "b"),
    "reorders fields": (3, "c"),
    "widens fields": (4, 0.5),
    "adds in a struct": (5, (6,)),
    "stays": (7, None),
}
WRITES_AFTER: Mapping[str, tuple[Any, ...]] = {
    "adds fields": (1, "A", [1, 2], True),
    "removes a field": (2,),
    "reorders fields": ("C", 33),
    "widens fields": (2**40, 0.1),
    "adds in a struct": (5, (6, "y")),
    "stays": (7, "G"),
}


class Changing(Plain):
    """All three kinds with the fields of its schemas; shows what it finds, then writes."""

    def __init__(self, schemas: Mapping[str, str], writes: Mapping[str, tuple[Any, ...]]) -> None:
        self.schemas = schemas
        self.writes = writes

    def init(self, handle: StatefulProcessorHandle) -> None:
        names = {name: name.replace(" ", "_") for name in self.schemas}
        items = self.schemas.items()
        self.values = {n: handle.getValueState(f"value_{names[n]}", s) for n, s in items}
        self.lists = {n: handle.getListState(f"list_{names[n]}", s) for n, s in items}
        self.maps = {n: handle.getMapState(f"map_{names[n]}", "k string", s) for n, s in items}

    def found(self, name: str) -> str:
        value, entries = self.values[name], self.maps[name]
        return (
            f"{value.get()} {list(self.lists[name].get())} {sorted(map(repr, entries.iterator()))}"
        )

    def process(self, name: str) -> tuple[str, str]:
        before = self.found(name)
        self.values[name].update(self.writes[name])
        self.lists[name].appendValue(self.writes[name])
        self.maps[name].updateValue(
            ("old" if not self.maps[name].exists() else "new",), self.writes[name]
        )
        return before, self.found(name)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        before, after = self.process(key[0])
        yield Row(k=key[0], before=before, after=after)


class ChangingInPandas(Changing):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        before, after = self.process(key[0])
        yield pd.DataFrame({"k": [key[0]], "before": [before], "after": [after]})


class Variables(Plain):
    """Value variables by name, some of them purged, also after they were declared."""

    def __init__(
        self,
        names: tuple[str, ...],
        purged: tuple[str, ...] = (),
        dropped: tuple[str, ...] = (),
    ) -> None:
        self.names = names
        self.purged = purged
        self.dropped = dropped

    def init(self, handle: StatefulProcessorHandle) -> None:
        for name in self.purged:
            handle.deleteIfExists(name)
        self.states = {name: handle.getValueState(name, "n int") for name in self.names}
        for name in self.dropped:
            handle.deleteIfExists(name)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            found = {name: tried(state.get) for name, state in self.states.items()}
            done = {name: tried(state.update, (row.v,)) for name, state in self.states.items()}
            yield Row(k=key[0], found=f"{found} {done}")


class Renamed(Variables):
    """The same, by another name."""


class One(Plain):
    """One variable of a kind and schema, written once."""

    def __init__(self, kind: str, schema: Any, value: tuple[Any, ...]) -> None:
        self.kind = kind
        self.schema = schema
        self.value = value

    def init(self, handle: StatefulProcessorHandle) -> None:
        define = handle.getValueState if self.kind == "value" else handle.getListState
        self.state = define("only", self.schema)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        if self.kind == "value":
            self.state.update(self.value)
        else:
            self.state.appendValue(self.value)
        yield Row(k=key[0], found="written")


_ONE_OUT = "k string, found string"
_KEYS = tuple((name, 0) for name in BEFORE)
_ROWS = ((("a", 1), ("b", 2)), (("a", 3), ("c", 4)), (("a", 5), ("b", 6)))


def _changing(*, pandas: bool) -> Scenario:
    def operator(schemas: Mapping[str, str], writes: Mapping[str, tuple[Any, ...]]) -> Any:
        made = (ChangingInPandas if pandas else Changing)(schemas, writes)
        return process(made, "k string, before string, after string", pandas=pandas)

    return Scenario(
        f"evolution, in {'pandas' if pandas else 'rows'}",
        "k string, v int",
        (_KEYS, _KEYS),
        (operator(BEFORE, WRITES_BEFORE),),
        restarts={1: (operator(AFTER, WRITES_AFTER),)},
        conf=AVRO,
        parts=tuple(f"{name}" for name in BEFORE),
    )


def _refused(name: str, before: Any, after: Any, fails: str) -> Scenario:
    return Scenario(
        f"evolution: {name}",
        "k string, v int",
        _ROWS[:2],
        (process(before, _ONE_OUT),),
        restarts={1: (process(after, _ONE_OUT),)},
        conf=AVRO,
        fails=fails,
    )


SCENARIOS = (
    _changing(pandas=False),
    _changing(pandas=True),
    Scenario(
        "evolution: variables come and go, one is purged and comes back empty",
        "k string, v int",
        _ROWS,
        (process(Variables(("kept", "gone", "purged", "dropped")), _ONE_OUT),),
        restarts={
            1: (
                process(
                    Variables(("kept", "new", "dropped"), ("purged", "unheard of"), ("dropped",)),
                    _ONE_OUT,
                ),
            ),
            2: (process(Renamed(("kept", "new", "purged", "dropped")), _ONE_OUT),),
        },
    ),
    _refused(
        "a narrower type is refused",
        One("value", "n long", (1,)),
        One("value", "n int", (1,)),
        r"(?i)evolution",
    ),
    _refused(
        "another type is refused",
        One("value", "n int", (1,)),
        One("value", "n string", ("1",)),
        r"(?i)evolution",
    ),
    _refused(
        "another kind of state is refused",
        One("value", "n int", (1,)),
        One("list", "n int", (1,)),
        r"(?i)only",
    ),
    Scenario(
        "evolution: another time mode is refused",
        "k string, v int",
        _ROWS[:2],
        (process(One("value", "n int", (1,)), _ONE_OUT),),
        restarts={1: (process(One("value", "n int", (1,)), _ONE_OUT, time="ProcessingTime"),)},
        fails=r"(?i)time ?mode",
        conf=STILL,
    ),
)
