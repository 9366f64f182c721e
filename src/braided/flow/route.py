"""From rows to channels: the slot of a row's key, the channel that owns it, the order of rows.

Everything here is a JVM expression; no Python touches a row on the way. The hidden columns that it
adds are described in `tasks/columns.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    AtomicType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from braided.control.routing.key_assignment import NO_KEYS, KeyAssignment
from braided.control.routing.table import Pin, RoutingTable
from braided.errors import OptionError
from braided.spark.column_lists import ColumnList, NameList
from braided.spark.jvm import int_array
from braided.spark.key_lookup import KeyLookup
from braided.spark.sql_text import quoted
from braided.tasks.columns import PLACE, PLACE_SHIFT, hidden_key, order_columns
from braided.tasks.stage import StageInput

__all__ = [
    "GroupingKeys",
    "Route",
    "can_be_pinned",
    "first_order",
    "late_filter",
    "pin_hashes",
    "place_column",
    "sequence",
    "slot_of_place",
    "slot_sql",
]

_ORDERABLE: dict[type[DataType], str] = {
    ByteType: "bigint({0})",
    ShortType: "bigint({0})",
    IntegerType: "bigint({0})",
    LongType: "{0}",
    DateType: "bigint(unix_date({0}))",
    TimestampType: "unix_micros({0})",
    # Not by way of a timestamp of the session's zone, in which some of these times do not exist.
    TimestampNTZType: (
        "bigint(CAST(CAST({0} - timestamp_ntz'1970-01-01 00:00:00' AS INTERVAL SECOND) "
        "AS DECIMAL(18, 6)) * 1000000)"
    ),
}
_Asked: TypeAlias = tuple[tuple[str, ...], tuple[Pin, ...], KeyAssignment]

_KAFKA = {"topic": StringType, "partition": IntegerType, "offset": LongType}


def sequence(schema: StructType, order_by: str | None) -> list[str]:
    """SQL for the order of a source's rows: as the user says, as Kafka knows, or as they come."""
    as_they_come = "monotonically_increasing_id()"
    types = {field.name: field.dataType for field in schema.fields}
    if order_by is not None:
        if order_by not in types:
            raise OptionError(
                f"braided.orderBy names column {order_by!r}, but the stream has {', '.join(types)}"
            )
        conversion = _ORDERABLE.get(type(types[order_by]))
        if conversion is None:
            raise OptionError(
                f"braided.orderBy takes an integral, date or timestamp column; {order_by!r} is "
                f"{types[order_by].simpleString()}"
            )
        value = conversion.format(quoted(order_by))
        return [f"coalesce({value}, bigint('-9223372036854775808'))", as_they_come]
    if all(isinstance(types.get(name), kind) for name, kind in _KAFKA.items()):
        return ["shiftleft(bigint(`partition`), 44) | `offset`", "bigint(crc32(binary(topic)))"]
    return [as_they_come]


def slot_sql(columns: Sequence[str], slots: int) -> str:
    """SQL for the slot of a key, where no pin says otherwise."""
    return f"pmod({_hash_sql(columns)}, {slots})"


def _hash_sql(columns: Sequence[str]) -> str:
    return f"xxhash64({', '.join(columns)})"


def place_column(columns: Sequence[str], slot: Column) -> Column:
    """The place of a row's key, by its slot."""
    high = F.expr(f"shiftrightunsigned({_hash_sql(columns)}, {64 - PLACE_SHIFT})")
    return F.shiftleft(slot, PLACE_SHIFT).bitwiseOR(high).alias(PLACE)


def _pinned_slot(pin: Pin, sequence_sql: Sequence[str]) -> str:
    if not pin.shares:
        return f"bigint({pin.slot})"
    # By a hash and not in turn: input may have a pattern, such as every eighth row.
    turn = f"int(pmod({_hash_sql(sequence_sql)}, {len(pin.shares)})) + 1"
    return f"bigint(element_at(array({', '.join(map(str, pin.shares))}), {turn}))"


def slot_of_place() -> str:
    """SQL for the slot that a row's place has in it."""
    return f"int(shiftright({PLACE}, {PLACE_SHIFT}))"


def pin_hashes(columns: Sequence[str]) -> tuple[str, str]:
    """SQL for the two hashes that rows of a pinned key are known by: 128 bits, so that no other key
    is ever taken for it.

    Spark's hash passes over nulls, so that (null, 1) and (1, null) have the same one. The second
    says where they are.
    """
    told = ", ".join(f"isnull({column}), {column}" for column in columns)
    return _hash_sql(columns), f"xxhash64(bigint(7), {told})"


def can_be_pinned(key_schema: StructType) -> bool:
    """Whether the two hashes tell all keys apart: inside structs and arrays, nulls and lengths do
    not show in them.
    """
    return all(isinstance(field.dataType, AtomicType) for field in key_schema.fields)


def _bigint(number: int) -> str:
    # The lowest bigint has no literal of its own.
    return f"bigint('{number}')"


def first_order(sequence_sql: Sequence[str]) -> list[str]:
    """SQL for the order columns of rows that are new: their age is 0, of carried ones it is below.

    The age is not the batch's number, because a number that differs from batch to batch would be
    compiled into the code that Spark generates: compiled anew for every batch, and never hot.
    """
    values = ["bigint(0)", *sequence_sql]
    names = order_columns(len(values))
    return [f"{value} AS {name}" for value, name in zip(values, names, strict=True)]


def late_filter(time: str) -> Callable[[int], str]:
    """SQL that keeps the rows that are not late, given the watermark in ms."""

    def keep(watermark_ms: int) -> str:
        # Inside an array, at an index that Spark does not see is constant, the watermark is not
        # compiled into the generated code, which would then be compiled anew for every batch.
        index = f"pmod(hash({time}), 1) + 1"
        watermark = f"element_at(array(timestamp_millis({watermark_ms})), {index})"
        return f"NOT coalesce({time} <= {watermark}, false)"

    return keep


@dataclass(frozen=True)
class GroupingKeys:
    """The grouping columns of an operator, as the routing needs them."""

    columns: tuple[Column | str, ...]
    """A name for a column that the rows have anyway, a Column for an expression."""

    def hidden_names(self) -> list[str]:
        return [hidden_key(i) for i, c in enumerate(self.columns) if isinstance(c, Column)]

    def hidden(self) -> list[Column]:
        return [
            column.alias(hidden_key(i))
            for i, column in enumerate(self.columns)
            if isinstance(column, Column)
        ]

    def sql(self) -> list[str]:
        return [
            hidden_key(i) if isinstance(column, Column) else quoted(column)
            for i, column in enumerate(self.columns)
        ]

    def positions(self, names: Sequence[str]) -> list[int]:
        """Where the keys are in the rows that reach a task (see `Route.apply`)."""
        hidden = len(names)
        found = []
        for column in self.columns:
            if isinstance(column, Column):
                found.append(hidden)
                hidden += 1
            else:
                found.append(names.index(column))
        return found


@dataclass(frozen=True)
class _Sequences:
    """The columns that a route sorts by, and those that it drops."""

    by_place: ColumnList
    by_age: ColumnList
    by_sequence: ColumnList
    order: NameList


class Route:
    """The way to one operator; keeps the parsed table while the epoch lasts."""

    def __init__(self, keys: GroupingKeys, slots: int, order: int, by_place: bool = False) -> None:
        """`by_place`: rows are sorted by their place alone, and keep their order columns, because
        the task puts the rows of a place in order.
        """
        self._by_place = by_place
        self._hidden = keys.hidden()
        self._order = order_columns(order)
        self._sequences: _Sequences | None = None
        self._columns = keys.sql()
        self._slots = slots
        # With the SQL, the pins and the assigned keys that it was made for.
        self._placing: tuple[_Asked, ColumnList] | None = None
        self._lookup: tuple[KeyAssignment, KeyLookup] | None = None
        self._table: RoutingTable | None = None
        self._channel: Column | None = None

    def apply(self, rows: StageInput) -> DataFrame:
        """One partition per channel, sorted by slot, hash of the key, key and order.

        The columns of the result: order columns if tagged, the rows' own, hidden keys, the place.
        By place alone it is sorted by slot and hash, and always has order columns.
        """
        frame, table = rows.frame, rows.table
        if self._hidden:
            frame = frame.select("*", *self._hidden)
        placed = self.placed(frame, rows.admitted, table.pins, table.assigned)
        routed = placed.repartitionById(table.channels, self._channel_of(table, slot_of_place()))
        if self._sequences is None:
            self._sequences = self._make_sequences(frame.sparkSession)
        lists = self._sequences
        if self._by_place:
            return lists.by_place.sort_within_partitions(routed)
        order = lists.by_age if rows.aged else lists.by_sequence
        arranged = order.sort_within_partitions(routed)
        return arranged if rows.tagged else lists.order.drop(arranged)

    def placed(
        self,
        frame: DataFrame,
        admitted: Sequence[str] = (),
        pins: tuple[Pin, ...] = (),
        assigned: KeyAssignment = NO_KEYS,
    ) -> DataFrame:
        """The rows with the place of their key."""
        if admitted and any(pin.shares for pin in pins):
            # Shares go by the order of rows, which has to be there first.
            frame, admitted = frame.select(*map(F.expr, admitted), "*"), ()
        asked = (tuple(admitted), pins, assigned)
        if self._placing is None or self._placing[0] != asked:
            # Not by age: it says nothing that the rest does not.
            slot = self._slot_column(frame.sparkSession, pins, assigned, self._order[1:])
            columns = [*map(F.expr, admitted), F.col("*"), place_column(self._columns, slot)]
            self._placing = asked, ColumnList(frame.sparkSession, columns)
        return self._placing[1].select(frame)

    def counted(self, frame: DataFrame, table: RoutingTable) -> DataFrame:
        """The slots that rows will have, and how many rows each."""
        keyed = frame.select("*", *self._hidden) if self._hidden else frame
        # A split key has so many rows that each share has the same part of them.
        anyhow = ["monotonically_increasing_id()"]
        slot = self._slot_column(frame.sparkSession, table.pins, table.assigned, anyhow)
        return keyed.groupBy(slot.cast("int")).count()

    def exchanged(self, frame: DataFrame, table: RoutingTable) -> DataFrame:
        """One partition per channel, in no order and with no columns but the frame's own. For keys
        that are all in the slots of their hashes.
        """
        assert not table.pins and not table.assigned, "keys are where their hashes say"
        slot = f"int({slot_sql(self._columns, self._slots)})"
        return frame.repartitionById(table.channels, self._channel_of(table, slot))

    def _slot_column(
        self,
        spark: SparkSession,
        pins: tuple[Pin, ...],
        assigned: KeyAssignment,
        sequence_sql: Sequence[str],
    ) -> Column:
        """The slot of a row: of its pin, else of its assignment, else of its hash."""
        key_hash, check = map(F.expr, pin_hashes(self._columns))
        lookup = self._lookup_of(spark, assigned)
        unpinned = (
            F.expr(slot_sql(self._columns, self._slots))
            if lookup is None
            else lookup.slot(key_hash, check)
        )
        slot: Column | None = None
        for pin in pins:
            has_hash = key_hash == F.expr(_bigint(pin.hash))
            is_it = has_hash & (check == F.expr(_bigint(pin.check)))
            pinned = F.expr(_pinned_slot(pin, sequence_sql))
            slot = F.when(is_it, pinned) if slot is None else slot.when(is_it, pinned)
        return unpinned if slot is None else slot.otherwise(unpinned)

    def _lookup_of(self, spark: SparkSession, assigned: KeyAssignment) -> KeyLookup | None:
        """What finds assigned keys; sent to executors once, and dropped when others are assigned,
        which is after the last batch by these.
        """
        if self._lookup is not None and self._lookup[0] != assigned:
            self._lookup[1].destroy()
            self._lookup = self._placing = None
        if self._lookup is None and assigned:
            columns = (assigned.hashes, assigned.checks, assigned.slots)
            self._lookup = assigned, KeyLookup(spark, *columns, self._slots)
        return None if self._lookup is None else self._lookup[1]

    def _make_sequences(self, spark: SparkSession) -> _Sequences:
        # The place alone does not tell all keys apart: Spark's hash passes over nulls, so that
        # (1, null) and (null, 1) have one place, as have keys whose hashes collide. They must not
        # take turns. To compare keys costs next to nothing: only rows of one place get that far.
        # Not by age where all rows are new: Spark drops it then.
        keys = [F.col(PLACE), *map(F.expr, self._columns)]
        order = [F.col(name) for name in self._order]
        return _Sequences(
            by_place=ColumnList(spark, [F.col(PLACE)]),
            by_age=ColumnList(spark, [*keys, *order]),
            by_sequence=ColumnList(spark, [*keys, *order[1:]]),
            order=NameList(spark, self._order),
        )

    def _channel_of(self, table: RoutingTable, slot: str) -> Column:
        if self._table is not table or self._channel is None:
            context = SparkContext._active_spark_context
            assert context is not None
            owners = int_array(context, table.slots)
            self._table, self._channel = table, F.element_at(owners, F.expr(f"{slot} + 1"))
        return self._channel
