"""The kinds of operators that the harness runs: what differs between them."""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from braided.errors import DefinitionError
from braided.kinds.class_step import with_fields
from braided.kinds.columnar import task as columnar_task
from braided.kinds.operator import task as operator_task
from braided.operator.columns import ColumnOperator, column_codec
from braided.operator.definition import Operator, state_codec
from braided.store.codec_names import ARROW_FIELDS, RECORDS
from braided.store.columnar.fields import DUE
from braided.store.columnar.fields import evolve as evolve_columns
from braided.store.history.manifest import OperatorMeta
from braided.store.records.old_records import evolve
from braided.tasks.spec import BatchSpec, TaskSpec
from braided.tasks.task import TaskRun
from braided.testing.rows import ColumnHarnessProgram, HarnessProgram

__all__ = ["TestedKind", "tested_kind"]


class TestedKind(Protocol):
    """What the harness asks of a kind, given a class of it."""

    codec: str
    program: Any
    """Makes the program that is run."""
    diverts: bool

    def describe(self) -> str:
        """The fields, as a checkpoint records them."""

    def continued(self, name: str, kept: OperatorMeta) -> OperatorMeta: ...

    def begin(self, spec: TaskSpec, program: Any, batch: BatchSpec) -> TaskRun: ...

    def fields(self, record: bytes, history: tuple[str, ...]) -> tuple[dict[str, Any], list[int]]:
        """The fields of a record, and its timers in ms."""


class _Operators:
    codec = RECORDS
    program = HarnessProgram
    diverts = True

    def __init__(self, operator: type[Operator]) -> None:
        self._operator = operator

    def describe(self) -> str:
        return state_codec(self._operator).describe()

    def continued(self, name: str, kept: OperatorMeta) -> OperatorMeta:
        return with_fields(kept, evolve(state_codec(self._operator), name, kept.history))

    def begin(self, spec: TaskSpec, program: Any, batch: BatchSpec) -> TaskRun:
        return operator_task.begin_run(spec, program, batch, 0)

    def fields(self, record: bytes, history: tuple[str, ...]) -> tuple[dict[str, Any], list[int]]:
        op, codec = self._operator(), state_codec(self._operator).at(history)
        timers = codec.load(op, record)
        return {field.name: getattr(op, field.name) for field in codec.fields}, list(timers)


class _ColumnOperators:
    codec = ARROW_FIELDS
    program = ColumnHarnessProgram
    diverts = False

    def __init__(self, operator: type[ColumnOperator]) -> None:
        self._operator = operator

    def describe(self) -> str:
        return column_codec(self._operator).describe()

    def continued(self, name: str, kept: OperatorMeta) -> OperatorMeta:
        return with_fields(kept, evolve_columns(column_codec(self._operator), name, kept.history))

    def begin(self, spec: TaskSpec, program: Any, batch: BatchSpec) -> TaskRun:
        return columnar_task.begin_run(spec, program, batch, 0)

    def fields(self, record: bytes, history: tuple[str, ...]) -> tuple[dict[str, Any], list[int]]:
        codec = column_codec(self._operator).at(history)
        columns, _ = codec.read([record])
        [fields] = pa.Table.from_arrays(columns, schema=codec.schema).to_pylist()
        timers = []
        if fields.pop(DUE, None) is not None:
            us = columns[codec.names.index(DUE)].cast(pa.int64())[0].as_py()
            timers = [-(-us // 1000)]
        return fields, timers


def tested_kind(operator: Any) -> TestedKind:
    """The kind of an operator class; refuses what is none."""
    if isinstance(operator, type) and issubclass(operator, Operator):
        operator.check_params()
        return _Operators(operator)
    if isinstance(operator, type) and issubclass(operator, ColumnOperator):
        operator.check_params()
        return _ColumnOperators(operator)
    raise DefinitionError(
        "the harness takes a class derived from braided.Operator or braided.ColumnOperator"
    )
