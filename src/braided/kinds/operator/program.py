"""An operator as a task needs it: what does not change from batch to batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from braided.errors import OperatorDefinitionError
from braided.operator.definition import Operator
from braided.store.slots.key_codec import KeyCodec
from braided.tasks.output import OutputEncoder
from braided.tasks.packing import PackedProgram, pack
from braided.tasks.rows import RowFactory

__all__ = ["Program"]


@dataclass(frozen=True)
class Program:
    """One operator of a flow, ready to run."""

    name: str
    operator: type[Operator]
    time_mode: str
    input: StructType
    """The rows that `onRow` sees."""
    key: StructType
    key_positions: tuple[int, ...]
    """Where the key columns are among the rows' own and the hidden ones."""
    output: StructType
    sides: tuple[StructType, ...] = ()
    """The rows of each input, where there are two."""

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
    def rows(self) -> RowFactory:
        return RowFactory(self.input)

    @cached_property
    def side_rows(self) -> tuple[RowFactory, ...]:
        return tuple(map(RowFactory, self.sides))

    @cached_property
    def key_rows(self) -> RowFactory:
        return RowFactory(self.key)

    @cached_property
    def encoder(self) -> OutputEncoder:
        return OutputEncoder(self.output, self.name, self.operator)

    @cached_property
    def key_schema(self) -> pa.Schema:
        return to_arrow_schema(self.key, timezone="UTC")

    @cached_property
    def keys(self) -> KeyCodec:
        return KeyCodec(self.key_schema)
