"""Rows that are counted before they are routed: the tables of a batch fit its own rows."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import braided
from braided import failpoints
from braided.control.measure.view import OperatorView
from braided.control.routing.table import RoutingTable
from braided.query.stored_tables import table_of
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest_log import ManifestLog
from support.stream_harness import Lab, committed_view
from support.stream_operators import FAMILY, SCHEMA

SLOTS = 32


@dataclass(frozen=True)
class DealtOut:
    """Slots with work are dealt out to channels in turn, all others are on the first one: whoever
    sees the table knows whose rows it was made for.
    """

    weighed = False
    by_load = True

    def balance(self, operator: OperatorView, channels: int) -> RoutingTable:
        slots = np.zeros(operator.table.slots.size, dtype=np.int32)
        working = np.flatnonzero(operator.load)
        slots[working] = np.arange(working.size) % channels
        return operator.table.next(slots, channels)


def _slots_of(spark: SparkSession, keys: list[str]) -> dict[str, int]:
    found = spark.createDataFrame([(key,) for key in keys], "k string").selectExpr(
        "k", f"int(pmod(xxhash64(k), {SLOTS})) AS slot"
    )
    return {row.k: row.slot for row in found.collect()}


def _shown(query: Any) -> dict[str, Any]:
    """What the last batch says of its count, and of itself."""
    progress = [p for p in query.recentProgress if p["numInputRows"]][-1]
    return {"rows": progress["numInputRows"], **progress["braided"]["sameBatch"]}


def _is_dealt_out(lab: Lab, slots: set[int]) -> bool:
    """Whether the table in effect was made for rows in these slots and no others."""
    manifests = ManifestLog(LocalStore(Path(lab.checkpoint) / "braided"))
    table = table_of(committed_view(lab.checkpoint).operators["totals"], manifests)
    owners = np.zeros(SLOTS, dtype=np.int32)
    working = sorted(slots)
    owners[working] = np.arange(len(working)) % table.channels
    return np.array_equal(table.slots, owners)


def test_a_batch_runs_by_a_table_for_its_own_rows_and_is_exact(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Hot sets flip with every batch, while channels change, and the query crashes between count
    and run and is started again.
    """
    sets = [[f"{letter}{i}" for i in range(9)] for letter in "abc"]
    slot_of = _slots_of(spark, [key for keys in sets for key in keys])
    totals: Counter[str] = Counter()
    fitting = 0
    with Lab(spark, tmp_path) as lab:
        feed = lab.feed(SCHEMA)
        rows = braided.stream(feed.frame()).filter("v >= 0")
        flow = rows.groupBy("k").apply(FAMILY["Totals"].operator, SCHEMA).name("totals")
        options: dict[str, Any] = {"balance": DealtOut(), "balance.sameBatch": "on"}
        query = lab.start(flow, slots=SLOTS, channels=3, **options)
        for number in range(16):
            keys = sets[number % 3]
            if number == 6:
                query.rescale(5)
            if number == 8:
                failpoints.arm("counted")
            feed.add([(key, 0, 1 if n % 7 else -1, n) for n, key in enumerate(keys * 6)])
            if number == 8:
                with pytest.raises(Exception, match="crashed at counted"):
                    query.processAllAvailable()
                query = lab.start(flow, **options)
            query.processAllAvailable()
            assert query._opened.control.settled(180)
            totals.update(key for n, key in enumerate(keys * 6) if n % 7)
            shown = _shown(query)
            assert shown["rows"] == 54  # the input is read once
            # The first of a process teach what rows cost. A user's table is the user's, and may
            # take effect in a batch of its own.
            if number != 6:
                is_early = number < 4 or 8 <= number < 12
                assert shown["counted"] == (not is_early), (number, shown)
            if shown["counted"]:
                assert _is_dealt_out(lab, {slot_of[key] for key in keys}), number
                fitting += 1
        query.stop()
        counts = {key: fields["count"] for (key,), fields in lab.state(flow, "totals").items()}
        assert counts == totals
        numbered = Counter((row[0], row[1]) for row in lab.rows())
        assert numbered == Counter((key, n + 1) for key in totals for n in range(totals[key]))
        log = (lab.checkpoint / "braided" / "events.jsonl").read_text().splitlines()
        lines = [json.loads(line) for line in log]
        # The one that crashed was counted too, and nobody hears of batches that were not.
        assert sum(line["type"] == "counted" for line in lines) == fitting + 1
        assert [line["on"] for line in lines if line["type"] == "counting"] == [True, True]


def test_keys_that_python_makes_are_not_counted_and_the_progress_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    upper = F.udf(lambda text: text.upper(), "string")
    with Lab(spark, tmp_path) as lab:
        feed = lab.feed(SCHEMA)
        keyed = braided.stream(feed.frame()).groupBy(upper("k").alias("k"))
        flow = keyed.apply(FAMILY["Totals"].operator, SCHEMA).name("totals")
        with lab.running(flow, slots=8, **{"balance.sameBatch": "on"}) as query:
            for _ in range(6):
                feed.add([("a", 0, 1, 1), ("b", 0, 1, 2)])
                query.processAllAvailable()
                assert query._opened.control.settled(180)
            shown = _shown(query)
        assert not shown["counted"]
        assert "Python" in shown["why"]
        assert {k: f["count"] for (k,), f in lab.state(flow).items()} == {"A": 6, "B": 6}
