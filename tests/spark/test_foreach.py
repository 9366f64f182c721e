"""`foreach`: a function or an object for each row, in tasks."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkAttributeError

import braided
from support.power_cut import cut_at
from support.row_recorder import Recorder
from support.stream_harness import Feed, Lab
from support.stream_operators import SCHEMA, Totals

ROWS = [(f"k{i % 5}", 0, i, i) for i in range(40)]


@pytest.fixture
def feed(lab: Lab) -> Feed:
    made = lab.feed(SCHEMA)
    made.add(ROWS[:30])
    made.add(ROWS[30:])
    return made


def run(lab: Lab, feed: Feed, f: Any, **options: Any) -> None:
    flow = braided.stream(feed.frame(maxFilesPerTrigger=1)).groupBy("k").apply(Totals, SCHEMA)
    writer = flow.writeStream.foreach(f).option("checkpointLocation", str(lab.checkpoint))
    writer.option("braided.channels", 3).trigger(availableNow=True)
    writer.options(**options).start().awaitTermination()


def oracle() -> Counter[Any]:
    sums: dict[str, list[int]] = {}
    found = []
    for k, _, v, seq in ROWS:
        count, total = sums.setdefault(k, [0, 0])
        sums[k] = [count + 1, total + v]
        found.append((k, count + 1, total + v, seq))
    return Counter(found)


def calls(directory: Path) -> list[tuple[tuple[int, int], list[Any], str | None]]:
    """(partition, epoch), the rows in order, and the error, for every open that was called."""
    found = []
    for path in sorted(directory.iterdir(), key=os.path.getmtime):
        first, *rows, last = map(json.loads, path.read_text().splitlines())
        assert (first[0], last[0]) == ("open", "close")
        assert {row[0] for row in rows} <= {"row"}
        found.append(((first[1], first[2]), [tuple(row[1:]) for row in rows], last[1]))
    return found


def test_a_function_gets_each_row(lab: Lab, feed: Feed, tmp_path: Path) -> None:
    seen = str(tmp_path / "seen")

    def note(row: Any) -> None:
        with open(seen, "a") as file:
            file.write(json.dumps(row) + "\n")

    run(lab, feed, note)
    lines = Path(seen).read_text().splitlines()
    assert Counter(tuple(json.loads(line)) for line in lines) == oracle()


def test_an_object_is_opened_with_partition_and_epoch_and_closed(
    lab: Lab, feed: Feed, tmp_path: Path
) -> None:
    run(lab, feed, Recorder(tmp_path / "calls", refuse=(1,)))
    made = calls(tmp_path / "calls")
    names = [name for name, _, _ in made]
    assert len(names) == len(set(names))
    assert {epoch for _, epoch in names} == {0, 1}
    assert all(error is None for _, _, error in made)
    assert all(rows == [] for (_, epoch), rows, _ in made if epoch == 1)
    rows = Counter(row for _, given, _ in made for row in given)
    assert rows == Counter({row: n for row, n in oracle().items() if row[3] < 30})


def test_a_partition_of_an_epoch_has_the_same_rows_in_the_same_order_after_a_replay(
    lab: Lab, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_number, (point, nth) in enumerate([("after-publish", 1), ("publishing", 2)]):
        with cut_at(monkeypatch, point, nth), pytest.raises(Exception, match="power cut"):
            run(lab, feed, Recorder(tmp_path / "calls"))
        # How Spark would cut files into partitions has changed meanwhile.
        lab.spark.conf.set("spark.sql.files.maxPartitionBytes", str(200 + run_number))
    try:
        run(lab, feed, Recorder(tmp_path / "calls"))
    finally:
        lab.spark.conf.unset("spark.sql.files.maxPartitionBytes")
    known: dict[tuple[int, int], list[Any]] = {}
    repeated = 0
    for name, rows, _ in calls(tmp_path / "calls"):
        repeated += name in known
        assert known.setdefault(name, rows) == rows
    assert repeated == len([name for name in known if name[1] == 0]) > 1
    assert Counter(row for rows in known.values() for row in rows) == oracle()


def test_an_error_closes_the_object_and_ends_the_query_and_the_epoch_comes_again(
    lab: Lab, feed: Feed, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="no place for 33"):
        run(lab, feed, Recorder(tmp_path / "calls", fail_at=33))
    [error] = [error for _, _, error in calls(tmp_path / "calls") if error]
    assert error == "LookupError('no place for 33')"
    run(lab, feed, Recorder(tmp_path / "fixed"))
    assert {epoch for (_, epoch), _, _ in calls(tmp_path / "fixed")} == {1}
    rows = Counter(row for _, given, _ in calls(tmp_path / "fixed") for row in given)
    assert rows == Counter({row: n for row, n in oracle().items() if row[3] >= 30})


def test_what_has_no_process_or_can_not_travel_is_refused_at_once(lab: Lab, feed: Feed) -> None:
    class Half:
        process = 3

    class Closed:
        close = "yes"

        def process(self, row: Any) -> None: ...

    flow = braided.stream(feed.frame()).groupBy("k").apply(Totals, SCHEMA)
    for bad in (Half(), Closed(), object()):
        with pytest.raises(PySparkAttributeError, match="ATTRIBUTE_NOT_CALLABLE"):
            flow.writeStream.foreach(bad)  # type: ignore[arg-type]
    lock = threading.Lock()
    with pytest.raises(TypeError, match="pickle"):
        flow.writeStream.foreach(lambda row: lock.acquire())
