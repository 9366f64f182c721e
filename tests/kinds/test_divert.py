"""Rows whose operator raises: diverted one by one, with the key as it was before them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

import braided
from braided.errors import OperatorDefinitionError, OperatorError, OutputSchemaError
from braided.kinds.operator.row_json import row_json
from braided.tasks.output import OutputEncoder
from braided.testing import OperatorHarness
from braided.testing.ddl import parse_schema

NOON = datetime(2024, 5, 1, 12)
SCHEMA = "id string, total int"


class Fragile(braided.Operator):
    """Does things to its state, its timers and its output, and then may raise."""

    total: int = 0
    names: list[str] = []  # noqa: RUF012

    def onRow(self, row: Any) -> Iterator[Any]:
        self.total += row.v
        self.names.append(row.what)
        self.setTimer(NOON + timedelta(hours=row.v))
        if row.what == "forget":
            self.forget()
        yield row.id, self.total
        match row.what:
            case "raise":
                raise ValueError("no good")
            case "state":
                self.total = "text"  # type: ignore[assignment]
            case "delete":
                del self.total
            case "output":
                yield row.id, 1 << 40
            case "raise after forget":
                self.forget()
                raise ValueError("forgotten")

    def onTimer(self, fired: datetime) -> Iterator[Any]:
        self.total += 100
        yield self.key.id, self.total
        if "bad timer" in self.names:
            self.setTimer(fired + timedelta(hours=1))
            raise RuntimeError("timer")


def harness(operator: type[braided.Operator] = Fragile, **options: Any) -> OperatorHarness:
    return OperatorHarness(operator, key="id", schema=SCHEMA, now=NOON, onError="divert", **options)


def row(what: str, v: int = 1, id: str = "a") -> dict[str, Any]:
    return {"id": id, "v": v, "what": what}


BAD = ["raise", "state", "delete", "output", "raise after forget"]


@given(
    st.lists(st.tuples(st.sampled_from(["ok", "forget", *BAD]), st.sampled_from("ab")), max_size=8)
)
def test_what_is_left_is_what_the_good_rows_alone_would_leave(
    events: list[tuple[str, str]],
) -> None:
    rows = [row(what, number + 1, id) for number, (what, id) in enumerate(events)]
    good = [r for r in rows if r["what"] not in BAD]
    diverting, plain = harness(), OperatorHarness(Fragile, key="id", schema=SCHEMA, now=NOON)
    assert diverting.process(rows) == plain.process(good)
    for id in "ab":
        assert diverting.state(id) == plain.state(id)
        assert diverting.timers(id) == plain.timers(id)
    dead = diverting.deadLetters()
    # By key in the order of its rows; which key comes first is not said.
    for id in "ab":
        found = [json.loads(d.row) for d in dead if json.loads(d.key) == {"id": id}]
        assert found == [r for r in rows if r["what"] in BAD and r["id"] == id]
    assert diverting.advanceTime(timedelta(days=1)) == plain.advanceTime(timedelta(days=1))


def test_a_dead_letter_tells_error_operator_key_row_and_batch() -> None:
    run = harness()
    run.process([row("ok")])
    run.process([row("ok"), row("raise", 7), row("output", 8)])
    first, second = run.deadLetters()
    assert (first.operator, first.batch, second.batch) == ("Fragile", 1, 1)
    assert json.loads(first.key) == {"id": "a"}
    assert json.loads(first.row) == row("raise", 7)
    assert first.error.startswith("ValueError: no good\n")
    assert 'raise ValueError("no good")' in first.error
    assert second.error.startswith("OutputSchemaError: operator 'Fragile', output column 'total'")
    assert run.state("a") == {"total": 2, "names": ["ok", "ok"]}


def test_a_timer_that_raises_is_diverted_without_a_row_and_is_gone() -> None:
    run = harness()
    run.process([row("bad timer", 1, "a"), row("ok", 1, "b"), row("ok", 2, "a")])
    assert run.advanceTime(NOON + timedelta(hours=1)) == [Row(id="b", total=101)]
    [dead] = run.deadLetters()
    assert dead.error.startswith("RuntimeError: timer")
    assert (json.loads(dead.key), dead.row) == ({"id": "a"}, None)
    assert run.state("a") == {"total": 3, "names": ["bad timer", "ok"]}
    assert run.timers("a") == [NOON + timedelta(hours=2)]
    assert run.timers("b") == []


def test_on_batch_diverts_the_rows_of_the_call() -> None:
    class Sum(braided.Operator):
        total: int = 0

        def onBatch(self, rows: pa.Table) -> Iterator[Any]:
            self.total += sum(rows["v"].to_pylist())
            yield self.key.id, self.total
            yield pa.table({"id": ["arrow"], "total": [self.total]})
            if "raise" in rows["what"].to_pylist():
                raise ValueError("no")
            if "output" in rows["what"].to_pylist():
                yield pa.table({"id": ["x"], "total": ["y"]})

    run = harness(Sum)
    given = run.process([row("ok", 1, "a"), row("ok", 2, "b"), row("raise", 3, "a")])
    assert given == [Row(id="b", total=2), Row(id="arrow", total=2)]
    assert [json.loads(dead.row)["v"] for dead in run.deadLetters()] == [1, 3]
    assert run.process([row("output", 5, "b")]) == []
    assert run.state("a") is None
    assert run.state("b") == {"total": 2}
    assert len(run.deadLetters()) == 3


def test_an_error_that_is_not_of_the_row_still_fails() -> None:
    class NoTimer(braided.Operator):
        def onRow(self, row: Any) -> None:
            self.setTimer(1)

    class NoTable(braided.Operator):
        def onOpen(self) -> None:
            raise OSError("no table")

        def onRow(self, row: Any) -> None: ...

    with pytest.raises(OperatorDefinitionError, match="no onTimer"):
        harness(NoTimer).process([row("ok")])
    with pytest.raises(OperatorError, match="no table"):
        harness(NoTable).process([row("ok")])


def test_without_the_option_a_row_fails_the_batch() -> None:
    plain = OperatorHarness(Fragile, key="id", schema=SCHEMA)
    with pytest.raises(OperatorError, match="no good"):
        plain.process([row("raise")])
    assert plain.deadLetters() == []


def test_rows_are_told_as_json_whatever_they_hold() -> None:
    value = Row(
        at=NOON,
        price=Decimal("1E+3"),
        raw=b"\xff",
        odd=float("nan"),
        high=float("-inf"),
        inner=Row(x=None, y=[True, "ü"]),
        map={1: {"a": timedelta(seconds=1)}},
    )
    assert json.loads(row_json(value)) == {
        "at": "2024-05-01T12:00:00",
        "price": "1000",
        "raw": "/w==",
        "odd": "NaN",
        "high": "-Infinity",
        "inner": {"x": None, "y": [True, "ü"]},
        "map": {"1": {"a": "0:00:01"}},
    }


values = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text()
row_of = st.tuples(values, values, values, values)


@given(
    row_of | row_of.map(lambda r: dict(zip("abcd", r, strict=True))) | st.just(5) | st.just((1,))
)
def test_a_row_that_is_checked_is_a_row_that_can_be_encoded(given: Any) -> None:
    encoder = OutputEncoder(parse_schema("a int, b double not null, c string, d boolean"), "op")
    try:
        encoder.encode([given])
    except OutputSchemaError:
        with pytest.raises(OutputSchemaError):
            encoder.check([given])
    else:
        encoder.check([given])
