"""Columnar operators on Spark, beside what the differential suite runs them through."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import braided
from braided.errors import DefinitionError, UnsupportedError
from support.column_operators import Reminded, Sequence
from support.stream_harness import Lab

SCHEMA = "k string, seq bigint"


def test_order_survives_cuts_rescales_and_a_new_version_that_starts_with_state(lab: Lab) -> None:
    chance = random.Random(3)
    feed = lab.feed(SCHEMA)
    expected: dict[str, list[int]] = {key: [] for key in "abcdefgh"}
    expected["a"] = [-1]
    first = lab.spark.createDataFrame([("a", [-1]), ("z", [-9])], "k string, seen array<int>")

    def flow(operator: Any) -> braided.Stream:
        grouped = braided.stream(feed.frame()).groupBy("k")
        return grouped.apply(operator, SCHEMA, initialState=first).name("op")

    def arrive(batch: int) -> None:
        """Rows whose order only their numbers tell, over three files."""
        rows = [(chance.choice("abcdefgh"), batch * 100 + n) for n in range(60)]
        for key, seq in rows:
            expected[key].append(seq)
        chance.shuffle(rows)
        feed.add(rows, files=3)

    with lab.running(flow(Sequence), channels=2, slots=16, orderBy="seq") as query:
        arrive(0)
        query.processAllAvailable()
        query._opened.commands.cut_next(7)
        arrive(1)
        query.processAllAvailable()
        query.rescale(5)
        arrive(2)
        query.processAllAvailable()
    assert lab.state(flow(Sequence), "op") == {
        **{(k,): {"seen": seen} for k, seen in expected.items()},
        ("z",): {"seen": [-9]},
    }
    with lab.running(flow(Reminded), orderBy="seq") as query:
        arrive(3)
        query.processAllAvailable()
    assert sorted(lab.rows()) == sorted(
        (key, seq) for key, seen in expected.items() for seq in seen if seq >= 0
    )
    shown = {
        row.key.k: (row.state.asDict(), [each.year for each in row.timers])
        for row in braided.state(str(lab.checkpoint), lab.spark, operator="op").collect()
    }
    assert shown == {
        **{k: ({"seen": seen, "calls": 1}, [2090]) for k, seen in expected.items()},
        "z": ({"seen": [-9], "calls": None}, []),
    }


def test_what_it_can_not_do_is_said(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    feed.add([("a", 1)])
    grouped = braided.stream(feed.frame()).groupBy("k")
    with pytest.raises(DefinitionError, match="for one input, from braided"):
        braided.connect(grouped, grouped).apply(Sequence, SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="or a ColumnOperator"):
        lab.start(grouped.apply(Sequence, SCHEMA), onError="divert")
    wrong = lab.spark.createDataFrame([("a", "x")], "k string, seen string")
    with pytest.raises(DefinitionError, match="must be array<bigint>: cast it"):
        grouped.apply(Sequence, SCHEMA, initialState=wrong)

    class Fails(Sequence):
        def more(self, state: pa.Table) -> dict[str, Any]:
            return {"seen": state["nothing"]}

    with pytest.raises(StreamingQueryException, match=r"(?s)'Fails' raised KeyError.*k='a'.*more"):
        lab.run(grouped.apply(Fails, SCHEMA))
