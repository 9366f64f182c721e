"""An operator as a task needs it: what does not change from batch to batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pyspark.sql.types import StructType

from braided.kinds.class_program import ClassProgram
from braided.tasks.rows import RowFactory

__all__ = ["Program"]


@dataclass(frozen=True)
class Program(ClassProgram):
    """One operator of a flow, ready to run."""

    sides: tuple[StructType, ...] = ()
    """The rows of each input, where there are two."""

    @cached_property
    def rows(self) -> RowFactory:
        return RowFactory(self.input)

    @cached_property
    def side_rows(self) -> tuple[RowFactory, ...]:
        return tuple(map(RowFactory, self.sides))
