"""A columnar operator as a task needs it: what does not change from batch to batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from braided.errors import OperatorDefinitionError
from braided.operator.columns import ColumnOperator
from braided.store.slots.key_codec import KeyCodec
from braided.tasks.output import OutputEncoder
from braided.tasks.packing import PackedProgram, pack
from braided.tasks.rows import RowFactory

__all__ = ["ColumnProgram"]


@dataclass(frozen=True)
class ColumnProgram:
    """One columnar operator of a flow, ready to run."""

    name: str
    operator: type[ColumnOperator]
    time_mode: str
    input: StructType
    key: StructType
    key_positions: tuple[int, ...]
    """Where the key columns are among the rows' own and the hidden ones."""
    output: StructType

    def pack(self) -> PackedProgram:
        """What travels; refused if the operator refers to something that can't."""
        try:
            return pack(self)
        except Exception as error:
            raise OperatorDefinitionError(
                f"operator {self.name!r} can't be sent to the workers: {error}. It refers to "
                "something that belongs to this process alone; open such things in onOpen"
            ) from error

    @property
    def has_due(self) -> bool:
        """Whether keys have a time at which they are due."""
        return hasattr(self.operator, "onDue")

    @cached_property
    def encoder(self) -> OutputEncoder:
        return OutputEncoder(self.output, self.name, self.operator)

    @cached_property
    def key_rows(self) -> RowFactory:
        return RowFactory(self.key)

    @cached_property
    def key_schema(self) -> pa.Schema:
        return to_arrow_schema(self.key, timezone="UTC")

    @cached_property
    def keys(self) -> KeyCodec:
        return KeyCodec(self.key_schema)
