"""The benchmarks on sizes that say nothing about speed: that both sides run and are compared."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from braided.bench import (
    agg,
    cut,
    floor,
    kafka,
    many_slots,
    memory,
    processor,
    rescale,
    scale,
    skew,
    split_keys,
    state_size,
    stateful,
    store,
    surge,
)
from braided.bench.flipped import FlipSize
from braided.bench.kafka_topics import PARTITIONS, BenchTopics
from braided.bench.processors import PROCESSORS
from braided.bench.s3_server import S3Server
from braided.bench.session import NATIVE, Arena, InputFiles, touched_keys
from braided.bench.timeline import Timeline
from braided.bench.totals import last_per_key, same_rows
from braided.bench.traces import Trace
from braided.sim.arrivals import Spike
from support.kafka import Topics

CONF = {**NATIVE, "spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Iterator[Arena]:
    for name, value in CONF.items():
        spark.conf.set(name, value)
    yield Arena(spark, tmp_path)
    for name in CONF:
        spark.conf.unset(name)


def silent(line: str) -> None:
    pass


def test_stateful_runs_both_sides_and_finds_their_output_identical(place: Arena) -> None:
    few = stateful.Batches(1, 1)
    case = stateful.StatefulCase(
        300, 40, native=few, braided=stateful.Batches(1, 2), onrow=few, columnar=few
    )
    lines: list[str] = []
    result = stateful.measure(place, case, lines.append)
    assert result["identical"] is True
    assert result["ratio"] > 0
    assert result["columnar_to_braided"] > 0
    assert result["native_batches"] == 1
    assert result["braided_batches"] == 2
    counted = {line.split()[4]: line.split()[-2] for line in lines if "rows/s" in line}
    assert counted["noop"] == counted["columnar"] == "(2"


@pytest.mark.parametrize("aggregate", ["count", "window"])
def test_agg_runs_both_sides_and_finds_their_output_identical(place: Arena, aggregate: str) -> None:
    size = agg.AggSize(rows=300, warm=1, counted=1, rounds=1)
    result = agg.measure(place, agg.AggCase(aggregate, keys=40, hot=True), size, silent)
    assert result["identical"] is True
    assert result["ratio"] > 0
    assert result["batches"] == 1


IN_PANDAS = {"list", "timers"}
"""Each kind runs once, in rows or in pandas; test_processor_differential has all in both."""


@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
def test_processor_runs_both_sides_and_finds_their_output_identical(
    place: Arena, pandas: bool
) -> None:
    size = processor.ProcessorSize(
        keys=40, rows_per_key=2, warm=1, native=1, braided=2, warm_keys=5, settling=0
    )
    inputs = processor.inputs(place, size)
    for name, value in processor.CONF.items():
        place.spark.conf.set(name, value)
    try:
        for kind in IN_PANDAS if pandas else PROCESSORS.keys() - IN_PANDAS:
            result = processor.measure(place, inputs, size, kind, pandas=pandas, progress=silent)
            assert result["identical"] is True, kind
            assert result["ratio"] > 0
            assert (result["native_batches"], result["braided_batches"]) == (1, 2)
            if pandas:
                assert 0 < result["frames_ms"] < result["braided_ms"]
            else:
                assert "frames_ms" not in result
    finally:
        for name in processor.CONF:
            place.spark.conf.unset(name)


def test_floor_tells_what_each_step_of_a_batch_takes(place: Arena) -> None:
    result = floor.measure(
        place, floor.FloorSize(20, 5, warm=1, batches=1, rounds=1), "noop", silent
    )
    assert min(result["native_ms"], result["empty_ms"], result["braided_ms"]) > 0
    assert {"route", "process", "commit", "publish"} <= set(result["steps_ms"])
    assert sum(result["steps_ms"].values()) <= result["braided_ms"]


def test_rescale_sees_both_sides_pause_and_arrive_at_the_same_totals(place: Arena) -> None:
    size = rescale.RescaleSize(
        200, 50, before=2, after=2, interval_s=0.2, load_rows=100, control=False
    )
    result = rescale.measure(place, size, silent)
    assert result["identical"] is True
    assert result["native_pause_s"] > 0
    assert result["longest_batch_around_rescale_s"] > 0


def test_a_key_with_most_of_the_rows_has_one_state_split_or_not(place: Arena) -> None:
    result = split_keys.measure_split(place, split_keys.SplitSize(200, 100, 1), silent)
    assert result["identical"] and result["split_ratio"] > 0


def test_skew_runs_all_sides_and_finds_their_output_identical(place: Arena) -> None:
    size = skew.SkewSize(
        60, braided=2, static=1, native=1, warm=1, warm_rows=40, keys=20, channels=2
    )
    result = skew.measure(place, skew.SkewCase(1.0, 16), size, silent)
    assert result["identical"] is True
    assert min(result["bound_ratio"], result["static_bound_ratio"], result["wall_ratio"]) > 0
    assert result["bound_over_static"] > 0
    assert min(result[f"{side}_rows_per_s"] for side in ("native", "static", "braided")) > 0
    assert result["p99_ms"] > 0


def test_flipped_hot_sets_have_the_same_output_counted_or_not(place: Arena) -> None:
    size = FlipSize(60, batches=2, channels=2, warm=2, warm_rows=40, keys=20)
    result = skew.measure_flipped(place, size, silent)
    assert result["identical"] is True
    assert result["off"]["counted"] == 0
    assert min(result[mode]["flipped_bound_ratio"] for mode in ("auto", "off")) > 0


def test_surge_loses_no_row_and_counts_what_was_held(place: Arena) -> None:
    size = surge.SurgeSize(40, before_s=0.5, surge_s=0.5, after_s=0.5, interval_s=0.3, keys=10)
    result = surge.measure(place, size, silent)
    assert result["no_row_lost"] is True
    assert result["rows"] == 40 * 0.5 * (1 + 4 + 1)
    # Held for as long as rows came, and longer where the machine was slow.
    assert result["few_channel_s"] >= 1 * 1.5
    assert result["many_channel_s"] >= 6 * 1.5
    assert result["ideal_channel_s"] == 1 * 1.0 + 6 * 0.5


def test_a_hot_slot_has_the_same_rows_out_with_cuts_and_without(place: Arena) -> None:
    size = cut.CutSize(
        400, before_s=0.5, hot_s=1.5, after_s=0.5, keys_per_slot=8, idle_rounds=1, idle_batches=3
    )
    result = cut.measure(place, size, silent)
    assert result["identical"] is True
    assert result["p99_ratio"] > 0 and result["idle_cost"] > -1
    assert min(side["batches"] for side in result["sides"].values()) > 0
    assert result["sides"]["whole"]["cuts"] == 0


def test_channels_are_held_until_the_next_batch_begins_and_the_last_until_it_ends() -> None:
    busy = [1000.0, 500.0]
    batches = [
        {
            "timestamp": f"1970-01-01T00:00:0{second}Z",
            "durationMs": {"triggerExecution": 2_000},
            "braided": {"operators": {"work": {"channels": channels, "rows": 10, "busyMs": busy}}},
        }
        for second, channels in (("0.000", 4), ("1.000", 1), ("2.500", 6), ("3.000", 2))
    ]
    timeline = Timeline.of(batches, "work", begun_s=1.0)
    assert timeline.channels == (1, 6, 2)  # what ended before the clock started is left out
    assert timeline.changes == (1, 2)
    assert (timeline.busy_s[0], timeline.busiest_s[0]) == (1.5, 1.0)
    assert timeline.channel_s(3.0) == 1 * 1.5 + 6 * 0.5 + 2 * 2.0
    assert timeline.channel_s(5.0) == 1 * 1.5 + 6 * 0.5 + 2 * 3.0


@pytest.mark.parametrize("sessions", [False, True], ids=["rows", "sessions"])
def test_scale_gives_out_every_row_once_however_channels_change(
    place: Arena, sessions: bool
) -> None:
    arrivals = Spike(100, 400, 0.5, 0.5)
    trace = Trace("spike", arrivals, 1.5, (0.0, 0.5, 1.0), sessions=sessions, timer_s=0.002)
    size = scale.ScaleSize(interval_s=0.3, most=2, first_batches=2)
    result = scale.measure(place, trace, "saso" if sessions else "ds2", size, silent)
    assert result["identical"] is True
    assert result["batches"] == len(result["channels"]) > 0
    assert min(result["overshoot"], result["cost_ratio"], result["fixed_cost_ratio"]) > 0
    assert result["changes"] >= (result["settle_batches"] > 0)


def test_state_size_counts_what_is_written_for_the_keys_touched(place: Arena) -> None:
    plan = state_size.Plan((100, 800), touched=100, others=(400,), warm=0, batches=1, load_rows=500)
    result = state_size.measure(place, plan, silent)
    assert [size["keys"] for size in result["sizes"]] == [100, 800]
    assert [size["keys_touched"] for size in result["touched"]] == [100, 400]
    few, many = result["touched"]
    assert few["durable_bytes"] > few["changelog_bytes"] > 0
    assert many["changelog_bytes"] > few["changelog_bytes"]


def test_memory_grows_with_the_bytes_that_a_batch_touches(place: Arena) -> None:
    plan = memory.MemoryPlan(
        keys=(100, 400),
        keys_touched=20,
        load_rows=200,
        large_values=(8, 40),
        values_touched=(4, 40),
        rows=(50, 200),
        rows_keys=10,
        batches=1,
    )
    result = memory.measure(place, plan, silent)
    assert [case["keys"] for case in result["keys"]] == [100, 400]
    assert [case["keys"] for case in result["values"]] == [8, 40]
    assert [(case["operator"], case["keys"]) for case in result["rows"]] == [
        ("onBatch", 10),
        ("onBatch", 1),
        ("columnar", 10),
        ("columnar", 1),
    ]
    few, many = result["touched"]
    assert (few["keys_touched"], many["keys_touched"]) == (4, 40)
    assert many["worker_mb"] > few["worker_mb"] > 0
    assert min(many[name] for name in ("shared_mb", "driver_mb", "jvm_live_mb")) > 0
    assert many["worker_resident_mb"] > many["worker_mb"]
    assert set(result["growth"]) == {"keys", "rebuilt", "values", "rows"}


def test_slots_cost_a_worker_and_a_manifest_little() -> None:
    plan = many_slots.SlotsPlan(slots=(64, 512), channels=4, last=64, keys=2000, rounds=1)
    few, many = many_slots.measure_slots(plan, silent)
    assert (few["slots"], many["slots"], few["commit_ratio"]) == (64, 512, 1.0)
    assert 0 < few["manifest_mb"] < many["manifest_mb"] < 1
    assert many["load_s"] > 0 and many["worker_mb"] < 20


def test_a_difference_in_one_row_is_not_identical(spark: SparkSession) -> None:
    left = spark.createDataFrame([(1, 2, 3.0), (2, 1, 0.5)], "k long, n long, s double")
    assert same_rows([left, left])
    assert not same_rows([left, left.filter("k = 1")])
    assert not same_rows([left.filter("k = 1"), left])
    assert not same_rows([left, left.withColumn("s", left.s + 0.125)])
    assert not same_rows([left, left.union(left.limit(1))])
    assert not same_rows([left.limit(0), left.limit(0)])
    newest = last_per_key(left.union(spark.createDataFrame([(1, 5, 9.0)], left.schema)))
    assert {tuple(row) for row in newest.collect()} == {(1, 5, 9.0), (2, 1, 0.5)}


def test_inputs_are_read_in_the_order_in_which_they_were_made(place: Arena) -> None:
    inputs = InputFiles(place.work / "in")
    for number in range(4):
        inputs.add(np.full(3, number))
    changed = [path.stat().st_mtime for path in inputs.files]
    assert changed == sorted(set(changed))
    assert changed[-1] < time.time()
    counts = {row.k: row.n for row in inputs.totals(place.spark).collect()}
    assert counts == {0: 3, 1: 3, 2: 3, 3: 3}


def test_touched_keys_are_different_and_spread_over_all() -> None:
    keys = touched_keys(np.random.default_rng(1), 100, 10_000)
    assert len(set(keys.tolist())) == 100
    assert sorted(keys // 100) == list(range(100))


def test_a_pause_is_what_the_longest_gap_has_over_the_usual_one() -> None:
    assert rescale.pause_s([1.0, 1.0, 6.0, 1.0]) == 5.0
    assert rescale.pause_s([1.0, 1.0]) == 0.0


@pytest.mark.together("kafka")
def test_store_runs_on_disk_and_on_s3_and_counts_requests(
    place: Arena, s3_server: S3Server
) -> None:
    size = store.StoreSize(cases=((16, 40), (64, 80)), rows=20, warm=1, batches=2)
    result = store.measure(place, s3_server, size, silent)
    measured = {"local_ms", "s3_ms", "ratio", "channels_changed", "requests_per_batch"}
    assert measured < result.keys()
    assert all(result[name] > 0 for name in measured)
    assert result["identical"] is True
    assert result["requests_allowed"] == 3 * result["channels_changed"] + 6
    assert [(case["slots"], case["keys"]) for case in result["cases"]] == [(16, 40), (64, 80)]
    for case in result["cases"]:
        assert 0 < case["requests_per_batch"] <= case["requests_allowed"]


def test_kafka_compares_what_both_sides_wrote_and_sees_each_row_once(
    place: Arena, topics: Topics
) -> None:
    size = kafka.KafkaSize(300, 40, 2, 2, 1, 100, before_s=1, surge_s=0.5, after_s=1)
    result = kafka.measure(place, topics.broker, size, silent)
    assert result["identical"] is True
    assert result["ratio"] > 0 and result["p99_ms"] >= result["p50_ms"] > 0
    # So few batches need not show it.
    assert {"recovery_batches", "native_recovery_batches"} <= result.keys()


@pytest.mark.together("kafka")
def test_a_topic_is_read_to_the_end_of_what_is_committed(topics: Topics) -> None:
    """Also where a transaction has just ended, whose marks may not be there yet."""
    from confluent_kafka import Producer

    bench = BenchTopics(topics.broker)
    topic = bench.create("marks")
    producer = Producer(
        {"bootstrap.servers": topics.broker.address, "transactional.id": "marks", "log_level": 0}
    )
    producer.init_transactions(60)
    rows = [{"n": n} for n in range(20)]
    for number in range(4):
        producer.begin_transaction()
        for row in rows[5 * number : 5 * number + 5]:
            producer.produce(topic, json.dumps(row), partition=row["n"] % PARTITIONS)
        producer.commit_transaction(60)
        read = sorted(row["n"] for row in bench.read(topic))
        assert read == list(range(5 * number + 5))
