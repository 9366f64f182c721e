"""A query in a process of its own, made to be killed: `python driver.py job.json`.

Reads everything there is (one file a batch), then exits with 0, unless it is to wait for more.
Whatever a batch shows of itself is appended to a file at once, since a process that is killed has
no other chance to tell.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import braided
from braided import failpoints
from braided.api.writer import StreamWriter
from braided.control import operator_loop
from braided.control.policy import Limits
from braided.control.routing.key_assignment import KeyAssignment
from braided.control.routing.table import Pin, RoutingTable
from braided.errors import QueryStoppedError
from braided.flow.key_hashes import key_hashes, many_key_hashes
from braided.query.progress import ProgressLog
from braided.steering import policy_settings as policies
from braided.steering.commands import Commands
from braided.steering.control_thread import ControlThread
from braided.store.durable import epoch_lease
from braided.store.slots.key_codec import KeyCodec
from support.cluster_session import settings_of_cluster
from support.kill import branches
from support.kill.operators import OPERATORS
from support.restless import (
    RESTLESS_KEYS,
    WITHOUT_CORES,
    RestlessBalance,
    RestlessScale,
    as_many_as_wished,
    never_in_vain,
)

__all__ = ["Job"]

RESTLESS_BATCHES = 6
CUT_S = 0.02
INPUT = "id long, key string, amount long"


class Job(msgspec.Struct, frozen=True):
    """What the driver is to run, and where."""

    operator: str
    input: str
    output: str
    checkpoint: str
    cache: str
    progress: str
    sink: str = "parquet"  # or kafka, foreachBatch; branches, tables, exchange: several sinks
    victim: str = "driver"  # or "worker": who dies at the fail point
    restless: bool = False  # slots move and rows are carried after each of the first batches
    adversary: bool = False  # policies that change channels and slots after every batch
    java: str = ""  # more options of the JVM
    spark: dict[str, str] = {}  # more settings of the session
    options: dict[str, str] = {}
    source: dict[str, str] = {}  # options of Kafka's, which the exchange reads from
    endless: bool = False  # waits for more input
    cuts: bool = False  # batches are cut while they run, which takes one that is endless


def main(job: Job) -> None:
    if job.victim == "driver":
        os.environ["BRAIDED_FAILPOINT_PID"] = str(os.getpid())
    # A lease is fresh for as long as a slow machine takes to start the next driver.
    epoch_lease.FRESH_S = 3600.0
    _record(Path(job.progress))
    if job.restless:
        _ask_for_changes()
    spark = _session(job)
    if job.operator == "sums":
        _split_keys(spark)
    rows = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(job.input)
    if job.sink == "exchange":
        from support.kill import exchange  # Delta's library, too

        messages = spark.readStream.format("kafka").options(**job.source).load()
        sinks = exchange.writers(messages, job.output)
    elif job.sink == "branches":
        sinks = branches.writers(rows, Path(job.output))
    elif job.operator == "aggregates":
        counted = F.count("*").alias("count"), F.sum("amount").alias("total")
        flow = braided.stream(rows).groupBy("key").agg(*counted).name("op")
        sinks = [_sink(flow.writeStream.outputMode("update"), job)]
    else:
        operator, schema = OPERATORS[job.operator]
        flow = braided.stream(rows).groupBy("key").apply(operator, schema).name("op")
        if job.sink == "kafka":
            flow = flow.selectExpr("key", "to_json(struct(*)) AS value")
        if job.sink == "tables":
            from support.kill import tables  # Delta's and Iceberg's libraries, more than all others

            sinks = tables.writers(flow, Path(job.output))
        else:
            sinks = [_sink(flow.writeStream, job)]
    writer = sinks[0].options(**job.options)
    if not (job.endless or job.cuts):
        writer.trigger(availableNow=True)
    if job.adversary:
        _hand_over_to_adversary(writer, job)
    writer.option("checkpointLocation", job.checkpoint).option("braided.cache.dir", job.cache)
    query = braided.start(*sinks)
    if job.cuts:
        threading.Thread(target=_cut_again_and_again, args=(query,), daemon=True).start()
    query.awaitTermination()
    spark.stop()


def _cut_again_and_again(query: braided.ElasticQuery) -> None:
    with suppress(QueryStoppedError):
        while True:
            query.cut()
            time.sleep(CUT_S)


def _hand_over_to_adversary(writer: StreamWriter, job: Job) -> None:
    counts = "braided.balance.sameBatch" in job.options
    writer.option("braided.scale", RestlessScale(5, every=2 if counts else 1))
    writer.option("braided.balance", RestlessBalance(5)).option("braided.channels.max", 4)
    if not counts:  # a key that moves has its batch to itself
        policies.HOT_KEYS = RESTLESS_KEYS
    Limits.most = WITHOUT_CORES  # type: ignore[method-assign, assignment]
    operator_loop.judge = never_in_vain
    operator_loop.OperatorLoop.useful = as_many_as_wished  # type: ignore[method-assign]
    # Every batch waits for what the controller makes of the one before, so that each is changed.
    take = Commands.take
    threads: list[ControlThread] = []
    see = ControlThread.see

    def seen(thread: ControlThread, batch: Any) -> None:
        threads[:] = [thread]
        see(thread, batch)

    def taken(commands: Commands, *asked: Any) -> dict[str, RoutingTable]:
        for thread in threads:
            thread.settled(180)
        return take(commands, *asked)

    ControlThread.see = seen  # type: ignore[method-assign]
    Commands.take = taken  # type: ignore[method-assign]


def _split_keys(spark: SparkSession) -> None:
    """Before every batch a key is split, or made whole, at most one of them, and all of them are
    assigned to slots.
    """
    take = Commands.take
    chance = random.Random(3)
    schema = spark.createDataFrame([], "key string").schema
    codec = KeyCodec(pa.schema([("key", pa.string())]))
    keys = codec.encode_batch([pa.array([f"key {number}" for number in range(4)])])
    all_hashes = many_key_hashes(spark, schema, keys)

    def taken(commands: Commands, *asked: Any) -> dict[str, RoutingTable]:
        [key] = codec.encode_batch([pa.array([f"key {chance.randrange(3)}"])])
        hashes = key_hashes(spark, schema, key)
        assert hashes is not None
        slots = commands._tables["op"].slots.size
        shares = tuple(chance.sample(range(slots), chance.choice([0, 2, 3, 5])))
        commands.propose_pin("op", Pin(key, *hashes, chance.randrange(slots), shares))
        own = [chance.randrange(slots) for _ in keys]
        commands.propose_assignment({"op": KeyAssignment.of(keys, *all_hashes, own)})
        return take(commands, *asked)

    Commands.take = taken  # type: ignore[method-assign]


def _session(job: Job) -> SparkSession:
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {job.java}"
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("to be killed")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.fileSink.log.compactInterval", "3")
        .config("spark.driver.extraJavaOptions", options)
    )
    for name, value in {**job.spark, **settings_of_cluster()}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _sink(writer: StreamWriter, job: Job) -> StreamWriter:
    if job.sink == "foreachBatch":
        return writer.foreachBatch(_deliver_to(Path(job.output)))
    if job.sink == "kafka":  # the options say where
        return writer.format(job.sink)
    return writer.format(job.sink).option("path", job.output)


def _deliver_to(directory: Path) -> Callable[[DataFrame, int], None]:
    """Appends the rows of each call to a file of its own: half of them, then the rest."""
    directory.mkdir(exist_ok=True)

    def deliver(rows: DataFrame, batch: int) -> None:
        lines = [json.dumps(row.asDict()) + "\n" for row in rows.collect()]
        half = len(lines) // 2
        number = len(list(directory.iterdir()))
        with open(directory / f"{number:04d}-{batch}", "w") as file:
            file.writelines(lines[:half])
            file.flush()
            failpoints.reach("handing-over")
            file.writelines([*lines[half:], "end\n"])

    return deliver


def _record(path: Path) -> None:
    add = ProgressLog.add

    def recorded(log: ProgressLog, batch: int, content: dict[str, Any]) -> None:
        add(log, batch, content)
        with path.open("a") as file:
            file.write(json.dumps(content) + "\n")

    ProgressLog.add = recorded  # type: ignore[method-assign]


def _ask_for_changes() -> None:
    done = Commands.done
    batches = itertools.count()

    def and_more(commands: Commands, tables: Mapping[str, RoutingTable]) -> None:
        done(commands, tables)
        batch = next(batches)
        if batch < RESTLESS_BATCHES:  # each change asks for a batch: it would never end
            commands.rescale(1 + batch % 3, None)
            commands.cut_next(15)
            if batch % 2:
                commands.hold_input_next()

    Commands.done = and_more  # type: ignore[method-assign]


if __name__ == "__main__":
    main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Job))
