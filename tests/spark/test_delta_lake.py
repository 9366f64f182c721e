"""Tables that others than `deltalake` read and write: Delta Lake itself, where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

import braided
from braided.spark.version import SPARK
from support import delta_lake_program
from support.delta_lake_program import DELTA_SPARK, Job, lacking
from support.stream_harness import Feed, Lab
from support.stream_operators import SCHEMA, Totals

_TESTS = Path(__file__).parents[1]
ROWS = [("ab"[n % 2], 0, n, n) for n in range(12)]


@pytest.fixture(scope="session")  # before a Spark is started
def delta_lake() -> None:
    """Where Delta Lake can't be run its tests are skipped; in CI only where there is none for the
    version of Spark.
    """
    why = lacking()
    if why is not None:
        if SPARK == DELTA_SPARK and os.environ.get("BRAIDED_TEST_DELTA") == "required":
            raise RuntimeError(why)
        pytest.skip(why)


@pytest.mark.usefixtures("delta_lake")
def test_delta_lake_reads_the_tables_and_takes_over_and_nobody_sees_a_row_twice(lab: Lab) -> None:
    """A table that is added to, one by key, and one that is partitioned by a timestamp and read in
    another zone; then a query goes on with Delta Lake's writer.
    """
    feed = lab.feed(SCHEMA)
    feed.add(ROWS[:4])
    feed.add(ROWS[4:6])
    added, by_key = lab.home / "added", lab.home / "by-key"
    write(feed, "append", added, lab.home / "added-checkpoint", "k")
    write(feed, "update", by_key, lab.home / "by-key-checkpoint")
    moments = lab.home / "moments"
    at = "timestamp_micros(1000001 * seq) AS at"
    write(feed, "append", moments, lab.home / "moments-checkpoint", "at", columns=("seq", at))
    for n in range(3):
        feed.add(ROWS[6 + 2 * n : 8 + 2 * n])
    found = with_delta_lake(
        lab.home,
        Job(
            home=str(lab.home / "other"),
            tables=[str(added), str(by_key)],
            moments=str(moments),
            input=str(feed.directory),
            checkpoint=str(lab.home / "added-checkpoint"),
            table=str(added),
            deaths=["publishing", "after-publish"],
        ),
    )
    before = totals(ROWS[:6])
    newest = {row[0]: row for row in sorted(before, key=lambda row: row[3])}
    assert found["read"] == [sorted(before), sorted(newest.values())]
    assert found["at"] == [[seq, 1_000_001 * seq] for *_, seq in ROWS[:6]]
    assert found["died"] == [True, True]
    assert found["after"] == sorted(totals(ROWS))
    table = DeltaTable(str(added)).to_pyarrow_table().select(["k", "c", "v", "seq"])
    assert sorted(list(row.values()) for row in table.to_pylist()) == found["after"]


def write(
    feed: Feed,
    mode: str,
    table: Path,
    checkpoint: Path,
    *partition_by: str,
    columns: tuple[str, ...] = ("*",),
) -> None:
    stream = braided.stream(feed.frame(maxFilesPerTrigger=1)).groupBy("k").apply(Totals, SCHEMA)
    writer = stream.selectExpr(*columns).writeStream.format("delta").outputMode(mode)
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.partitionBy(*partition_by)
    writer.start(str(table)).awaitTermination()


def with_delta_lake(home: Path, job: Job) -> dict[str, Any]:
    path = home / "job.json"
    path.write_bytes(msgspec.json.encode(job))
    done = subprocess.run(
        [sys.executable, delta_lake_program.__file__, path],
        env={**os.environ, "PYTHONPATH": f"{_TESTS.parent / 'src'}:{_TESTS}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def totals(rows: list[tuple[str, int, int, int]]) -> list[list[Any]]:
    """What the operator gives out, in plain Python."""
    state: dict[str, tuple[int, int]] = {}
    found = []
    for key, _, v, seq in rows:
        count, total = state.get(key, (0, 0))
        state[key] = count + 1, total + v
        found.append([key, *state[key], seq])
    return found
