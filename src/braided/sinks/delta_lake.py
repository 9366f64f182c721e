"""What can be known of a table before Delta Lake's own data source writes to it.

Delta Lake is handed a batch when that is committed, and says then what it will not take, again and
again; and it skips batches that are older than what the table has, without a word. So the table is
looked at before, by way of `deltalake` where that is installed. What Delta Lake takes is its own
affair and grows: refused here is only what it refuses for certain.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Self

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    MapType,
    NumericType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from braided.errors import DefinitionError
from braided.sinks.delta_log import DeltaLog, is_installed
from braided.sinks.fitting import PLAIN, misfit
from braided.spark.store_settings import client_settings
from braided.store.durable.location import Location

__all__ = ["DeltaLakeTable"]

log = logging.getLogger("braided")

_MERGES = "spark.databricks.delta.schema.autoMerge.enabled"
_FILLED = ("delta.", "CURRENT_DEFAULT")
"""What metadata of columns begins with that Delta Lake may fill by itself."""

_KNOWN = (*PLAIN, StringType, StructType, ArrayType, MapType)

_NARROWER: dict[type[DataType], tuple[type[DataType], ...]] = {
    ShortType: (ByteType,),
    IntegerType: (ByteType, ShortType),
}
"""What is written into columns of a type as it is, since Parquet has one type for them."""

_WIDENED = ((NumericType, NumericType), (DateType, TimestampNTZType))
"""Types of which a column may be changed to the second, if the output may change the table."""


class DeltaLakeTable:
    """A table that Delta Lake writes, if it is there and can be read."""

    def __init__(self, table: DeltaLog, partition_by: Sequence[str], merges: bool) -> None:
        """`merges`: whether Delta Lake will add columns that the table lacks."""
        self._log = table
        self._partition_by = partition_by
        self._merges = merges
        self._is_readable = True
        self.without_nulls: list[str] = []
        """The columns in which Delta Lake takes no nulls, as the table was looked at last."""

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        path: str,
        partition_by: Sequence[str],
        options: Mapping[str, str],
    ) -> Self | None:
        """The table that a writer with such options writes; None where nobody can look at it."""
        if not is_installed():
            return None
        location = Location.of(path)
        asked = {name.lower(): value for name, value in options.items()}
        merges = asked.get("mergeschema") or str(spark.conf.get(_MERGES, "false"))
        table = DeltaLog(location, client_settings(spark, location))
        return cls(table, partition_by, merges.lower() == "true")

    @property
    def title(self) -> str:
        return self._log.title

    def problem(self, output: StructType) -> str | None:
        """Why Delta Lake will not take rows; None if nothing is known to be against it."""
        if not self._is_there():
            return None
        table, merges = _with_filled(self._log.schema), self._merges
        self.without_nulls = [field.name for field in table.fields if not field.nullable]
        columns = self._log.partition_by
        asked = [name.lower() for name in self._partition_by]
        if asked and asked != [name.lower() for name in columns]:
            return (
                f"it is partitioned by ({', '.join(columns)}), not by "
                f"({', '.join(self._partition_by)})"
            )
        return misfit(table, output, merges, lambda a, b: _may_take(a, b, merges))

    def check_age(self, application: str, newest: int) -> None:
        """CheckpointMismatchError if the table has more of a query than its checkpoint."""
        if self._is_there():
            self._log.check_age(application, newest)

    def _is_there(self) -> bool:
        try:
            return self._is_readable and self._log.exists()
        except DefinitionError as error:
            # Delta Lake itself may know more, or reach more: once is enough to find out.
            self._is_readable = False
            log.warning("%s; whether output fits it shows when Delta Lake writes it", error)
            return False


def _with_filled(table: StructType) -> StructType:
    """The table's columns; those that may be left to Delta Lake take nulls here."""
    fields = []
    for field in table.fields:
        is_filled = any(name.startswith(_FILLED) for name in field.metadata)
        fields.append(StructField(field.name, field.dataType, field.nullable or is_filled))
    return StructType(fields)


def _may_take(table: DataType, output: DataType, merges: bool) -> bool:
    """Whether Delta Lake may write values of one type into a column of the other."""
    match table, output:
        case StructType(), StructType():
            inside = {field.name.lower(): field.dataType for field in table.fields}
            return all(
                _may_take(inside[name], field.dataType, merges) if name in inside else merges
                for field in output.fields
                for name in [field.name.lower()]
            )
        case ArrayType(), ArrayType():
            return _may_take(table.elementType, output.elementType, merges)
        case MapType(), MapType():
            keys = _may_take(table.keyType, output.keyType, merges)
            return keys and _may_take(table.valueType, output.valueType, merges)
        case StringType(), StringType():  # of whatever collation
            return True
    if table == output or not (isinstance(table, _KNOWN) and isinstance(output, _KNOWN)):
        return True
    if merges and any(isinstance(table, a) and isinstance(output, b) for a, b in _WIDENED):
        return True
    return isinstance(output, _NARROWER.get(type(table), ()))
