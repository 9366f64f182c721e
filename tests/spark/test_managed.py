"""Functions over dicts in a running query: the same results as in a loop, while it is rescaled."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from inspect import getclosurevars
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

import braided
from braided.errors import DefinitionError
from support.managed_functions import Make, grouped_list, pair_key, threshold
from support.stream_harness import Lab

SCHEMA = "id string, kind string, value bigint, seq bigint"
CASES: list[tuple[Make, str]] = [
    (threshold, "id string, value bigint"),
    (pair_key, "id string, kind string, total bigint"),
    (grouped_list, "id string, history array<bigint>"),
]


def drawn(count: int, first: int) -> list[tuple[Any, ...]]:
    draw = random.Random(first)
    return [
        (draw.choice("abcdefgh"), draw.choice("xyz"), draw.randrange(40), first + i)
        for i in range(count)
    ]


@pytest.mark.parametrize(("make", "output"), CASES, ids=lambda part: getattr(part, "__name__", ""))
def test_a_managed_function_gives_what_a_loop_gives_while_it_is_rescaled(
    lab: Lab, make: Make, output: str
) -> None:
    feed = lab.feed(SCHEMA)
    operator = braided.managed(make())
    flow = braided.stream(feed.frame()).apply(operator, output)
    batches = [drawn(60, first) for first in (0, 60, 120)]
    with lab.running(flow, channels=2, orderBy="seq", slots=16) as query:
        for rows, channels in zip(batches, (5, 1, 3), strict=True):
            feed.add(rows)
            query.processAllAvailable()
            query.rescale(channels)
        query.processAllAvailable()
        assert query.routing()[operator.__name__].channels == 3
    function = make()
    expected: dict[Any, list[Any]] = defaultdict(list)
    for values in (row for rows in batches for row in rows):
        row = Row("id", "kind", "value", "seq")(*values)
        for given in function(row):
            found = tuple(given.values()) if isinstance(given, dict) else given
            expected[row.id].append(found)
    seen: dict[Any, list[Any]] = defaultdict(list)
    for found in lab.rows():
        seen[found[0]].append(found)
    if make is pair_key:  # of several keys with one id, each has an order of its own
        expected, seen = ({k: sorted(v) for k, v in side.items()} for side in (expected, seen))
    assert seen == expected
    held = getclosurevars(function).nonlocals
    state: dict[str, Any] = {name: {} for name in held}
    for fields in lab.state(flow).values():
        assert any(fields.values())  # a key without entries is forgotten
        for name, entries in fields.items():
            state[name].update(entries)
    assert state == held


def test_the_stream_is_grouped_by_the_key_of_the_function_or_refused(lab: Lab) -> None:
    last: dict[str, int] = {}
    when: dict[Any, int] = {}

    def keep(row: Any) -> Iterator[Any]:
        last[row.id] = row.value
        yield row

    def by_time(row: Any) -> None:
        when[row.at] = 1

    stream = braided.stream(lab.feed(SCHEMA).frame())
    operator = braided.managed(keep)
    assert stream.apply(operator, SCHEMA).schema == stream.schema
    assert stream.groupBy("id").apply(operator, SCHEMA).schema == stream.schema
    refused: list[tuple[Any, str]] = [
        (lambda: stream.groupBy("kind").apply(operator, SCHEMA), r"groupBy\('id'\)"),
        (lambda: stream.groupBy("id", "kind").apply(operator, SCHEMA), r"by \(id, kind\)"),
        (
            lambda: stream.groupBy(F.lower("id").alias("id")).apply(operator, SCHEMA),
            "an expression",
        ),
        (lambda: stream.drop("id").apply(operator, SCHEMA), "no column 'id'"),
        (
            lambda: stream.withColumn("id", F.col("seq")).apply(operator, SCHEMA),
            "the key column id is bigint, whose values are int",
        ),
        (
            lambda: stream.withColumn("at", F.current_timestamp()).apply(
                braided.managed(by_time, state={"when": dict[str, int]}), SCHEMA
            ),
            "same local time",
        ),
        (
            lambda: stream.withColumn("id", F.array("id")).apply(operator, SCHEMA),
            "no dict keys in Python",
        ),
    ]
    for flow, why in refused:
        with pytest.raises(DefinitionError, match=why):
            flow()

    class Plain(braided.Operator):
        def onRow(self, row: Any) -> None:
            pass

    with pytest.raises(DefinitionError, match="goes after groupBy"):
        stream.apply(Plain, SCHEMA)
