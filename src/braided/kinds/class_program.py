"""A class of operators as a task needs it: what does not change from batch to batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from braided.errors import OperatorDefinitionError
from braided.spark.arrow_types import to_arrow_schema
from braided.store.slots.key_codec import KeyCodec
from braided.tasks.output import OutputEncoder
from braided.tasks.packing import PackedProgram, pack
from braided.tasks.rows import RowFactory

__all__ = ["ClassProgram"]


@dataclass(frozen=True)
class ClassProgram:
    """One class in a flow, ready to run."""

    name: str
    operator: type[Any]
    time_mode: str
    input: StructType
    """The rows that its hooks see."""
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

    @cached_property
    def encoder(self) -> OutputEncoder:
        return OutputEncoder(self.output, self.name)

    @cached_property
    def key_rows(self) -> RowFactory:
        return RowFactory(self.key)

    @cached_property
    def key_schema(self) -> pa.Schema:
        return to_arrow_schema(self.key)

    @cached_property
    def keys(self) -> KeyCodec:
        return KeyCodec(self.key_schema)
