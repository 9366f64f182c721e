"""What `groupBy(...)` says: the columns to group by, checked, and the key that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import CalendarIntervalType, MapType, StringType, StructType, VariantType

from braided.errors import DefinitionError, UnsupportedError
from braided.flow.route import GroupingKeys

__all__ = ["Grouping"]


@dataclass(frozen=True)
class Grouping:
    """Rows by key."""

    shape: DataFrame
    """A DataFrame with the schema of the rows."""
    columns: tuple[str | Column, ...]
    """What to group by, as the user has it."""
    key_schema: StructType
    keys: GroupingKeys
    """How rows find the channel of their key."""

    @classmethod
    def of(cls, shape: DataFrame, cols: Sequence[str | Column | list[Any]]) -> Grouping:
        """What `groupBy(*cols)` means for rows of a shape; refuses what can't be a key."""
        flat = [c for col in cols for c in (col if isinstance(col, list | tuple) else [col])]
        if not flat:
            raise DefinitionError("groupBy needs at least one column")
        key = StructType(shape.select(*flat).schema.fields)
        for field in key.fields:
            _check_key_type(field.name, field.dataType)
        # Spark's own analysis refuses whatever else can't be grouped.
        shape.groupBy(*flat).agg(F.count(F.lit(1)))
        return cls(shape, tuple(flat), key, GroupingKeys(_key_columns(shape, flat)))

    @property
    def schema(self) -> StructType:
        """Of the rows."""
        return self.shape.schema


def _key_columns(shape: DataFrame, cols: list[str | Column]) -> tuple[str | Column, ...]:
    """The names of columns where they are just that, and expressions of all others."""
    exact = shape.sparkSession.conf.get("spark.sql.caseSensitive", "false") == "true"
    fold = str if exact else str.lower
    names = {fold(name): name for name in reversed(shape.columns)}
    columns: list[str | Column] = []
    for col in cols:
        name = names.get(fold(col if isinstance(col, str) else str(col._jc)))
        columns.append(name if name is not None else F.col(col) if isinstance(col, str) else col)
    return tuple(columns)


def _check_key_type(name: str, kind: Any) -> None:
    if isinstance(kind, MapType | VariantType | CalendarIntervalType):
        raise UnsupportedError(f"groupBy({name!r}): a key can't be of type {kind.simpleString()}")
    if isinstance(kind, StringType) and kind.collation != "UTF8_BINARY":
        raise UnsupportedError(
            f"groupBy({name!r}): keys with collation {kind.collation} are not supported; group by "
            f"collation_key({name}) or lower({name})"
        )
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_key_type(f"{name}.{field.name}", field.dataType)
    if hasattr(kind, "elementType"):
        _check_key_type(name, kind.elementType)
