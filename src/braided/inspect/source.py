"""The committed state of a checkpoint as a data source of Spark's: `spark.read.format("braided")`.

Spark makes, plans and reads a Python data source in worker processes, where there is no session:
everything comes from durable files. The version is settled when the source is made, so that a
DataFrame stays at it, however late it is evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from braided.errors import OptionError, StateNotFoundError
from braided.inspect.frames import StateTask, state_task
from braided.inspect.versions import Versions
from braided.spark.arrow_types import to_arrow_schema
from braided.store.durable.open_store import checkpoint_store
from braided.store.history.manifest import View

__all__ = ["StateSource"]

_OPTIONS = ("path", "operator", "operatorId", "batchId", "stateVarName")
_STORE = "braided.store."
_BYTES_PER_TASK = 16 << 20


class StateSource(DataSource):
    """The keys of an operator with their state, as `braided.state` has them."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = _checked(options)
        store = checkpoint_store(given["path"], _store_settings(options))
        view = Versions(store).view(_number(given, "batchId"))
        operator = _operator(given, view)
        self._version = view.operators[operator]
        self._task, whole = state_task(store, view, operator)
        self._variable = given.get("stateVarName")
        self._schema = whole
        if self._variable is not None:
            self._schema = _with_variable(whole, self._variable, operator)

    @classmethod
    def name(cls) -> str:
        return "braided"

    def schema(self) -> StructType:
        return self._schema

    def reader(self, schema: StructType) -> DataSourceReader:
        if schema.simpleString() != self._schema.simpleString():
            raise OptionError(
                "the braided source takes no schema: the checkpoint says what the state is. Leave "
                ".schema(...) out and select from what there is"
            )
        slots = self._version.meta.slots
        tasks = min(slots, 1 + self._version.bytes // _BYTES_PER_TASK)
        parts = [list(range(i, slots, tasks)) for i in range(tasks)]
        return _StateRowsReader(self._task, self._variable, schema, parts)


class _Slots(InputPartition):
    """Slots that one task reads."""

    def __init__(self, slots: list[int]) -> None:
        super().__init__(slots)
        self.slots = slots


@dataclass(frozen=True)
class _StateRowsReader(DataSourceReader):
    task: StateTask
    variable: str | None
    schema: StructType
    parts: list[list[int]]

    def partitions(self) -> Sequence[InputPartition]:
        return [_Slots(part) for part in self.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Slots)
        wanted = to_arrow_schema(self.schema)
        for batch in self.task.read(partition.slots):
            rows = batch if self.variable is None else _only(batch, self.variable)
            columns = [
                column.cast(field.type) for column, field in zip(rows.columns, wanted, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _only(batch: pa.RecordBatch, variable: str) -> pa.RecordBatch:
    """The rows of keys that have something in a variable, with that in the place of the state."""
    at = batch.schema.get_field_index("state")
    state = batch.column(at)
    names = [field.name for field in state.type]
    column = state.flatten()[names.index(variable)]
    there = column.is_valid()
    if pa.types.is_list(column.type) or pa.types.is_map(column.type):
        there = pc.and_(there, pc.greater(pc.list_value_length(_as_list(column)), 0))
    columns = [*batch.columns[:at], column, *batch.columns[at + 1 :]]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names).filter(there)


def _as_list(column: pa.Array) -> pa.Array:
    if not pa.types.is_map(column.type):
        return column
    return pa.ListArray.from_arrays(column.offsets, column.keys, mask=column.is_null())


# --- options ----------------------------------------------------------------------------------


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    """The options by the names that they have here; refuses those that have no meaning."""
    known = {name.lower(): name for name in _OPTIONS}
    for name in options:
        if name.lower() not in known and not name.lower().startswith(_STORE):
            raise OptionError(
                f"the braided source has no option {name!r}; it takes {', '.join(_OPTIONS)} "
                f"and settings of its store, {_STORE}..."
            )
    given = {known[name.lower()]: value for name, value in options.items() if name.lower() in known}
    if not given.get("path"):
        raise OptionError(
            "the braided source needs the checkpointLocation of a query: "
            '.option("path", ...) or .load(...)'
        )
    if "operator" in given and "operatorId" in given:
        raise OptionError("the braided source takes operator, a name, or operatorId, not both")
    return given


def _store_settings(options: Mapping[str, str]) -> dict[str, str]:
    """What reaches an object store: there is no session here to ask."""
    return {
        name.lower().removeprefix(_STORE): value
        for name, value in options.items()
        if name.lower().startswith(_STORE)
    }


def _number(given: Mapping[str, str], option: str) -> int | None:
    if option not in given:
        return None
    try:
        return int(given[option])
    except ValueError:
        raise OptionError(
            f"the braided source: {option} is a number, not {given[option]!r}"
        ) from None


def _operator(given: Mapping[str, str], view: View) -> str:
    """The operator that is meant."""
    where = f"{given['path']} at batch {view.batch}"
    names = sorted(view.operators, key=lambda name: view.operators[name].meta.ordinal)
    present = ", ".join(f"{name!r} ({view.operators[name].meta.ordinal})" for name in names)
    number = _number(given, "operatorId")
    if number is not None:
        found = [name for name in names if view.operators[name].meta.ordinal == number]
    else:
        wanted = given.get("operator")
        found = names if wanted is None else [name for name in names if name == wanted]
    if not found:
        asked = f"{given['operator']!r}" if number is None else f"with operatorId {number}"
        raise StateNotFoundError(f"{where} has no operator {asked}; it has {present}")
    if len(found) > 1:
        raise OptionError(
            f'{where} has several operators: say which with .option("operator", ...). They are '
            f"{present}"
        )
    return found[0]


def _with_variable(schema: StructType, variable: str, operator: str) -> StructType:
    state = schema["state"].dataType
    names = state.names if isinstance(state, StructType) else []
    if variable not in names:
        there = f"it has {', '.join(names)}" if names else "its state has no parts with names"
        raise StateNotFoundError(f"operator {operator!r} has no {variable!r}; {there}")
    assert isinstance(state, StructType)
    return StructType(
        [
            StructField("state", state[variable].dataType) if field.name == "state" else field
            for field in schema.fields
        ]
    )
