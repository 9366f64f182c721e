"""Kafka, exactly once: a batch in one transaction, from the rows that wait in the checkpoint.

Rows and columns are those of Spark's own sink for Kafka, which is at least once. To a checkpoint
both are one kind of sink, and what one has prepared the other publishes.
"""

from __future__ import annotations

import functools
import json
import operator
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructType

from braided import failpoints
from braided.errors import (
    CheckpointMismatchError,
    DefinitionError,
    OptionError,
    OutputSchemaError,
    PublishError,
    UnsupportedError,
)
from braided.sinks.base import SinkSetting
from braided.sinks.kafka_settings import kafka_settings
from braided.sinks.kafka_transactions import (
    INSTALL,
    KafkaTransactions,
    Message,
    is_installed,
    refused,
)
from braided.sinks.staged import Staged

__all__ = ["EXACTLY_ONCE", "KafkaSink", "rows_at_once"]

EXACTLY_ONCE = "exactlyonce"
"""The option that asks for this sink, in small letters."""

_ROWS = 4096
"""As many as are read from a prepared file at once, at most."""
_SLICE_BYTES = 16 << 20
"""So much of a file is read at once at most, by what its rows have on average."""
_HEADER_BYTES = 10
"""What Kafka's client counts for a header besides its key and value."""
_AT = "preparedAt"
_REMEMBERED_S = 24 * 3600.0
"""So long Kafka remembers a batch at least. Brokers forget a group's offsets a week after the last
(offsets.retention.minutes), if nobody has told them otherwise.
"""
_REFUSED = "Braided's sink for Kafka: "
_HEADERS = "array<struct<key:string,value:binary>>"
_TEXT: tuple[type[DataType], ...] = (StringType, BinaryType)
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": ((StringType,), "a string"),
    "key": (_TEXT, "a string or binary"),
    "value": (_TEXT, "a string or binary"),
    "partition": ((IntegerType,), "an int"),
}


class KafkaSink(Staged):
    """Topics of Kafka, by transactions."""

    kind = "kafka"
    earlier_name = "FormatSink"
    keeps = True

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        """Refuses what can't be, with a sentence, and connects to nothing."""
        if not is_installed():
            raise UnsupportedError(
                f"format('kafka') with exactlyOnce needs the package confluent-kafka: {INSTALL}"
            )
        named = {name.lower(): value for name, value in options.items()}
        self._topic = named.get("topic")
        self._settings = kafka_settings(options)
        self._columns = _columns(schema, self._topic)
        for name in named:
            if name not in ("topic", "includeheaders", EXACTLY_ONCE) and name[:6] != "kafka.":
                raise OptionError(f"format('kafka') with exactlyOnce has no option {name!r}")
        problem = refused(self._settings)
        if problem:
            raise OptionError(
                f"format('kafka') with exactlyOnce, whose settings are those of librdkafka: "
                f"{problem}"
            )

    @property
    def target(self) -> str | None:
        return self._topic

    def open(self, setting: SinkSetting) -> None:
        super().open(setting)
        self._newest = setting.newest
        name = f"braided/{setting.identity}"
        self._transactions = KafkaTransactions(self._settings, name, setting.check_lease)
        setting.ending.callback(self._transactions.close)
        self._transactions.begin()
        self._has_mark = False
        if self._topic is not None:
            self._check_topic(self._topic, setting.newest)

    def _check_topic(self, topic: str, newest: int) -> None:
        if not self._transactions.has_topic(topic):
            raise DefinitionError(
                f"format('kafka'): there is no topic {topic!r}, and the broker does not make it; "
                "make it before the query starts"
            )
        committed = self._transactions.committed(topic)
        if committed is not None and committed.batch > newest:
            raise CheckpointMismatchError(
                f"Kafka has batch {committed.batch} of this query (consumer group "
                f"{self._transactions.name}), whose checkpoint ends with batch {newest}: the "
                "checkpoint is an older copy. Batches would be taken for written already. Use the "
                "checkpoint that goes with the topic, or a new one"
            )
        self._has_mark = committed is not None

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        rows = df.select(*self._checked())
        try:
            schema, *files = super().prepare(rows, attempt)
        except Exception as error:
            _, found, sentence = str(error).partition(_REFUSED)
            if not found:
                raise
            sentence = sentence.partition(" SQLSTATE")[0].partition("\n")[0]
            raise OutputSchemaError(f"{sentence} Nothing of the batch is committed") from None
        return json.dumps({**json.loads(schema), _AT: time.time()}), *files

    def _checked(self) -> list[Column]:
        """The columns; a row that Kafka would not take ends the batch before it is committed."""
        columns = {name: F.col(f"`{name}`") for name in self._columns}
        size = _bytes_of(*(columns[name] for name in ("key", "value") if name in columns))
        if "headers" in columns:
            size += F.coalesce(
                F.aggregate(
                    columns["headers"],
                    F.lit(0),
                    lambda total, h: total + _bytes_of(h["key"], h["value"]) + _HEADER_BYTES,
                ),
                F.lit(0),
            )
        most = self._settings.message_bytes
        problems = [(size > most, f"a row has more than {most} bytes: kafka.max.request.size.")]
        if "topic" in columns:
            no_topic = "a row has no topic, and there is no option 'topic' for such rows."
            problems.append((columns["topic"].isNull(), no_topic))
            garbled = ~F.is_valid_utf8(columns["topic"])
            problems.append((garbled, "a row has a topic that is not UTF-8."))
        if "partition" in columns:
            problems.append((columns["partition"] < 0, "a row has a partition less than 0."))
        if "headers" in columns:
            no_key = F.exists(columns["headers"], lambda h: h.isNull() | h["key"].isNull())
            problems.append((no_key, "a row has a header without a key."))
            garbled = F.exists(columns["headers"], lambda h: ~F.is_valid_utf8(h["key"]))
            problems.append((garbled, "a row has a header whose key is not UTF-8."))
        value = columns["value"]
        for is_bad, sentence in problems:
            value = F.when(is_bad, F.raise_error(_REFUSED + sentence)).otherwise(value)
        return [value.alias(n) if n == "value" else column for n, column in columns.items()]

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        failpoints.reach("publishing")
        if not entries[1:]:
            return
        if batch <= self._newest and not self._has_mark:
            self._check_memory(batch, json.loads(entries[0]).get(_AT), entries)
        attempt = entries[1].split("/")[1]
        messages = functools.partial(self._messages, entries)
        self._transactions.write(batch, attempt, messages, lambda: self._topics(entries))
        failpoints.reach("transaction-committed")

    def _check_memory(self, batch: int, prepared_at: float | None, entries: Sequence[str]) -> None:
        """Refuses a batch of an earlier start that Kafka may have had, and forgotten."""
        if prepared_at is None or time.time() - prepared_at <= _REMEMBERED_S:
            return
        if not self._has_rows(entries):  # nothing of it was ever to be remembered
            return
        # An earlier batch may be in other topics. If Kafka has not forgotten that, then none since.
        if self._transactions.newest() is None:
            raise PublishError(
                f"batch {batch} was committed {time.ctime(prepared_at)}, and Kafka remembers no "
                f"batch of this query (consumer group {self._transactions.name}): brokers forget "
                "it some time after a query was stopped. Whether the batch is in the topic can't "
                "be told. docs/sinks.md says what to do if it is; if it is not, start the query "
                "once without the option exactlyOnce"
            )

    def _messages(self, entries: Sequence[str]) -> Iterator[Message]:
        for rows in self._prepared(entries):
            yield from _messages(rows, self._topic)
            failpoints.reach("transaction-filling")

    def _topics(self, entries: Sequence[str]) -> set[str]:
        if self._topic is not None:
            return {self._topic}
        return {
            topic
            for rows in self._prepared(entries, ["topic"])
            for topic in rows.column("topic").unique().to_pylist()
        }

    def _prepared(
        self, entries: Sequence[str], columns: list[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a batch, some at a time."""
        for name in sorted(entries[1:]):
            with self._out.files.reader(name) as file:
                rows = pq.ParquetFile(file)
                yield from rows.iter_batches(rows_at_once(rows.metadata), columns=columns)

    def _has_rows(self, entries: Sequence[str]) -> bool:
        for name in entries[1:]:
            with self._out.files.reader(name) as file:
                if pq.ParquetFile(file).metadata.num_rows:
                    return True
        return False


def _columns(schema: StructType, topic: str | None) -> list[str]:
    """The columns that are written, as Spark's sink takes them; others are left alone."""
    names = schema.names
    if topic is None and "topic" not in names:
        raise DefinitionError(
            "format('kafka') needs the option 'topic', or a column of that name in the output"
        )
    if "value" not in names:
        raise DefinitionError("format('kafka') needs a column 'value' in the output")
    columns = ["key", "value", "headers", "partition", *([] if topic is not None else ["topic"])]
    columns = [name for name in columns if name in names]
    for name in columns:
        kind = schema[name].dataType
        if name == "headers":
            if kind.simpleString() != _HEADERS:
                raise DefinitionError(
                    f"format('kafka'): column 'headers' must be {_HEADERS}, not "
                    f"{kind.simpleString()}"
                )
        elif not isinstance(kind, _TYPES[name][0]):
            raise DefinitionError(
                f"format('kafka'): column {name!r} must be {_TYPES[name][1]}, not "
                f"{kind.simpleString()}"
            )
    return columns


def rows_at_once(file: pq.FileMetaData) -> int:
    """How many rows of a file may be in memory together."""
    size: int = sum(file.row_group(n).total_byte_size for n in range(file.num_row_groups))
    rows: int = file.num_rows
    return max(1, min(_ROWS, _SLICE_BYTES * rows // max(1, size)))


def _bytes_of(*columns: Column) -> Column:
    """How many bytes texts have together."""
    sizes = [F.coalesce(F.octet_length(column), F.lit(0)) for column in columns]
    return functools.reduce(operator.add, sizes)


def _messages(rows: pa.RecordBatch, topic: str | None) -> Iterator[Message]:
    nothing = [None] * rows.num_rows
    # Text is handed on as it is: Spark's strings may be bytes that are no UTF-8.
    columns: dict[str, list[Any]] = {
        name: (column.cast(pa.binary()) if name in ("key", "value") else column).to_pylist()
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
        if name in ("topic", "key", "value", "partition", "headers")
    }
    topics = columns.get("topic", nothing) if topic is None else [topic] * rows.num_rows
    headers = columns.get("headers", nothing)
    parts = (columns.get(name, nothing) for name in ("key", "value", "partition"))
    for to, key, value, partition, marks in zip(topics, *parts, headers, strict=True):
        pairs = None if marks is None else [(mark["key"], mark["value"]) for mark in marks]
        yield Message(to, key, value, -1 if partition is None else partition, pairs)
