"""The handle that a StatefulProcessor is given, and the state objects that it gets from it.

They are Spark's own classes as far as a processor can tell, with the methods of ours. What Spark
refuses is refused here in Spark's words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from braided.kinds.processor.state_values import check_schema, key_codec, value_codec
from braided.store.variables.declared import Declaration, Declared
from braided.store.variables.open_key import OpenKey
from braided.store.variables.variables import Codec, ListVariable, MapVariable, ValueVariable
from braided.tasks.rows import row_class

__all__ = ["DriverHandle", "ProcessorHandle", "Schemas"]

Schemas = Mapping[str, StructType]
"""What schemas in words mean: no Spark is there to ask in a task."""

_INVALID = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID"

_AFTER_DELETION: Mapping[str, Mapping[str, str | None]] = {
    "value": {
        "exists": "Error checking value state exists",
        "get": "Error getting value state",
        "update": "Error updating value state",
        "clear": "Error clearing value state",
    },
    "list": {
        "exists": "Error checking value state exists",
        "get": None,
        "put": "Error updating value state",
        "appendValue": "Error updating value state",
        "appendList": "Error updating value state",
        "clear": "Error clearing value state",
    },
    "map": {
        "exists": "Error checking map state exists",
        "getValue": "Error getting value",
        "containsKey": "Error checking if map state contains key",
        "updateValue": "Error updating map state value",
        "iterator": None,
        "keys": None,
        "values": None,
        "removeKey": "Error removing key from map state",
        "clear": "Error clearing map state",
    },
}
"""What the methods of a variable say once `deleteIfExists` has named it, in Spark's words; None for
those that find nothing, because Spark's iterators take any error for their end."""


class _ValueState(ValueVariable, ValueState):
    """Spark's ValueState."""


class _ListState(ListVariable, ListState):
    """Spark's ListState."""

    _name = ""

    def _check(self, values: list[bytes]) -> None:
        if not values:
            raise PySparkRuntimeError(
                "Error updating value state: [ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal "
                "value provided to the State Store: Cannot write empty list values to State "
                f"Store for StateName {self._name}. Use clear()."
            )


class _MapState(MapVariable, MapState):
    """Spark's MapState."""


def _forget(variable: Any, kind: str, name: str) -> None:
    """Has a variable that was deleted after it was declared behave as Spark's does."""

    def refuse(head: str, *_: Any, **__: Any) -> NoReturn:
        raise PySparkRuntimeError(f"{head}: {kind.capitalize()} state {name} is not initialized.")

    for method, head in _AFTER_DELETION[kind].items():
        setattr(variable, method, partial(iter, ()) if head is None else partial(refuse, head))


class _Handle(StatefulProcessorHandle):
    """What both handles have: declaring, and the rules for it."""

    def __init__(self, time_mode: str) -> None:
        self._time_mode = time_mode
        self._phase = "CREATED"
        self._names: set[str] = set()

    def getValueState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ValueState:
        declared = self._declare("value", stateName, schema, None, ttlDurationMs)
        return self._value(declared, ttlDurationMs or None)

    def getListState(
        self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None
    ) -> ListState:
        declared = self._declare("list", stateName, schema, None, ttlDurationMs)
        return self._list(declared, ttlDurationMs or None)

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        declared = self._declare("map", stateName, valueSchema, userKeySchema, ttlDurationMs)
        return self._map(declared, ttlDurationMs or None)

    def deleteIfExists(self, stateName: str) -> None:
        self._check_phase("delete_if_exists", "Error deleting state")
        self._delete(stateName)

    # -- what is checked -------------------------------------------------------------------

    def _declare(
        self,
        kind: str,
        name: str,
        schema: StructType | str,
        user_key: StructType | str | None,
        ttl_ms: int | None,
    ) -> Declaration:
        head = f"Error initializing {kind} state"
        self._check_phase(f"get_{kind}_state", head)
        if name in self._names:
            raise PySparkRuntimeError(
                f"{head}: [STATE_STORE_DUPLICATE_STATE_VARIABLE_DEFINED] State variable with name "
                f"{name} has already been defined in the StatefulProcessor."
            )
        self._check_ttl(head, name, ttl_ms)
        self._names.add(name)
        return Declaration(
            name=name,
            kind=kind,
            schema=self._schema(schema).jsonValue(),
            user_key=None if user_key is None else self._schema(user_key).jsonValue(),
            expires=bool(ttl_ms),
        )

    def _check_ttl(self, head: str, name: str, ttl_ms: int | None) -> None:
        if not ttl_ms:
            return  # zero is none, as in Spark
        if self._time_mode != "ProcessingTime":
            raise PySparkRuntimeError(
                f"{head}: [STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL] Cannot use TTL "
                f"for state={name} in timeMode={self._time_mode}, use "
                "TimeMode.ProcessingTime() instead."
            )
        if ttl_ms < 0:
            raise PySparkRuntimeError(
                f"{head}: [STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE] TTL duration must be "
                f"greater than zero for State store operation=update on state={name}."
            )

    def _check_phase(self, operation: str, head: str) -> None:
        if self._phase not in ("CREATED", "PRE_INIT"):
            raise PySparkRuntimeError(
                f"{head}: [{_INVALID}_HANDLE_STATE] Failed to perform stateful processor "
                f"operation={operation} with invalid handle state={self._phase}: state variables "
                "are declared in init()."
            )

    def _check_timers(self, operation: str, head: str) -> None:
        if self._time_mode == "None":
            raise PySparkRuntimeError(
                f"{head}: [{_INVALID}_TIME_MODE] Failed to perform stateful processor "
                f"operation={operation} with invalid timeMode=None: timers need "
                "timeMode='ProcessingTime' or 'EventTime'."
            )
        if self._phase not in ("INITIALIZED", "DATA_PROCESSED"):
            raise PySparkRuntimeError(
                f"{head}: [{_INVALID}_HANDLE_STATE] Failed to perform stateful processor "
                f"operation={operation} with invalid handle state={self._phase}."
            )

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers("register_timer", "Error register timer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._check_timers("delete_timer", "Error deleting timer")

    def listTimers(self) -> Iterator[int]:
        self._check_timers("list_timers", "Error listing timers")
        return iter(())

    # -- what is made ----------------------------------------------------------------------

    def _schema(self, schema: StructType | str) -> StructType:
        raise NotImplementedError

    def _delete(self, name: str) -> None:
        raise NotImplementedError

    def _value(self, declared: Declaration, ttl_ms: int | None) -> ValueState:
        raise NotImplementedError

    def _list(self, declared: Declaration, ttl_ms: int | None) -> ListState:
        raise NotImplementedError

    def _map(self, declared: Declaration, ttl_ms: int | None) -> MapState:
        raise NotImplementedError


class DriverHandle(_Handle):
    """Finds out what a processor declares, before anything runs."""

    def __init__(self, time_mode: str) -> None:
        super().__init__(time_mode)
        self._phase = "PRE_INIT"
        self._variables: list[Declaration] = []
        self._deleted: list[str] = []
        self._key = OpenKey()  # which is never opened: state can't be used here
        self.schemas: dict[str, StructType] = {}

    @property
    def declared(self) -> Declared:
        return Declared(variables=tuple(self._variables), deleted=tuple(self._deleted))

    def _schema(self, schema: StructType | str) -> StructType:
        if isinstance(schema, str):
            parsed = StructType.fromDDL(schema)
            if not isinstance(parsed, StructType):
                parsed = StructType().add("value", parsed)
            self.schemas[schema] = parsed
            return parsed
        return schema

    def _delete(self, name: str) -> None:
        self._deleted.append(name)
        self._variables = [each for each in self._variables if each.name != name]

    def _checked(self, declared: Declaration) -> Declaration:
        for schema in (declared.schema, declared.user_key):
            if schema is not None:
                check_schema(StructType.fromJson(schema), f"state variable {declared.name!r}")
        self._variables.append(declared)
        return declared

    def _value(self, declared: Declaration, ttl_ms: int | None) -> ValueState:
        self._checked(declared)
        return _ValueState(self._key, 0, _NO_CODEC, ttl_ms)

    def _list(self, declared: Declaration, ttl_ms: int | None) -> ListState:
        self._checked(declared)
        return _ListState(self._key, 0, _NO_CODEC, ttl_ms)

    def _map(self, declared: Declaration, ttl_ms: int | None) -> MapState:
        self._checked(declared)
        return _MapState(self._key, 0, _NO_CODEC, _NO_CODEC, ttl_ms)


_NO_CODEC = Codec(lambda value: b"", lambda data: None)
_NO_NUMBER = -1


class ProcessorHandle(_Handle):
    """The handle of a task."""

    def __init__(
        self, time_mode: str, key: OpenKey, history: tuple[str, ...], schemas: Schemas
    ) -> None:
        super().__init__(time_mode)
        self._key = key
        self._versions = [
            {each.name: each for each in (*declared.kept, *declared.variables)}
            for declared in map(Declared.read, history)
        ]
        self._schemas = schemas
        self._made: dict[str, tuple[str, Any]] = {}
        """The variables that were declared, with their kinds."""
        self._unknown: dict[str, str] = {}
        """The kinds of those that the driver did not find, which is right if they are deleted."""

    def enter(self, phase: str) -> None:
        """INITIALIZED, DATA_PROCESSED, TIMER_PROCESSED or CLOSED, as in Spark."""
        for name, kind in self._unknown.items():
            raise _declared_otherwise(kind, name)
        self._phase = phase

    def registerTimer(self, expiryTimestampMs: int) -> None:
        super().registerTimer(expiryTimestampMs)
        self._key.set_timer(int(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        super().deleteTimer(expiryTimestampMs)
        self._key.drop_timer(int(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        super().listTimers()
        self._key.cells.get(0)  # refuses while no key is at hand
        return iter(sorted(self._key.timers))

    def _schema(self, schema: StructType | str) -> StructType:
        if not isinstance(schema, str):
            return schema
        known = self._schemas.get(schema)
        if known is None:
            raise PySparkRuntimeError(
                f"Error initializing state: the schema {schema!r} was not there when init() ran "
                "on the driver; init() must declare the same state variables everywhere"
            )
        return known

    def _delete(self, name: str) -> None:
        # Its state is gone already: the versions say so.
        self._unknown.pop(name, None)
        if name in self._made:
            kind, variable = self._made[name]
            _forget(variable, kind, name)

    def _number(self, declared: Declaration) -> int:
        now = self._versions[-1].get(declared.name)
        if now is None:
            self._unknown[declared.name] = declared.kind
            return _NO_NUMBER
        if (now.schema, now.user_key) != (declared.schema, declared.user_key):
            raise _declared_otherwise(declared.kind, declared.name)
        return now.number

    def _values(self, declared: Declaration, number: int) -> Codec:
        if number == _NO_NUMBER:
            return _NO_CODEC
        schemas = [
            StructType.fromJson(found.schema) if found and found.number == number else None
            for found in (version.get(declared.name) for version in self._versions)
        ]
        return value_codec(declared.name, schemas, len(schemas))

    def _value(self, declared: Declaration, ttl_ms: int | None) -> ValueState:
        number = self._number(declared)
        variable = _ValueState(self._key, number, self._values(declared, number), ttl_ms)
        self._made[declared.name] = ("value", variable)
        return variable

    def _list(self, declared: Declaration, ttl_ms: int | None) -> ListState:
        number = self._number(declared)
        variable = _ListState(self._key, number, self._values(declared, number), ttl_ms)
        variable._name = declared.name
        self._made[declared.name] = ("list", variable)
        return variable

    def _map(self, declared: Declaration, ttl_ms: int | None) -> MapState:
        number = self._number(declared)
        assert declared.user_key is not None
        keys = key_codec(declared.name, StructType.fromJson(declared.user_key))
        variable = _MapState(self._key, number, keys, self._values(declared, number), ttl_ms)
        names = StructType.fromJson(declared.schema).names
        variable._convert = partial(tuple.__new__, row_class(names))  # this one is a Row in Spark
        self._made[declared.name] = ("map", variable)
        return variable


def _declared_otherwise(kind: str, name: str) -> PySparkRuntimeError:
    return PySparkRuntimeError(
        f"Error initializing {kind} state: {name!r} was declared otherwise, or not at all, when "
        "init() ran on the driver; init() must declare the same state variables everywhere"
    )
