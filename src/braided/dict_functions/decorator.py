"""`braided.managed(function)`: a plain function over dicts, run as a keyed operator.

    last: dict[str, float] = {}

    def alert(row):
        if row.id in last and abs(row.value - last[row.id]) > 10:
            yield {"id": row.id, "value": row.value}
        last[row.id] = row.value

    braided.stream(df).apply(braided.managed(alert), "id string, value double")

The analysis (`analysis.py`) shows that the function uses its dicts at the row's key only. So the
very same code runs, over dicts that hold what belongs to the key at hand and nothing else: `in`,
`get`, a KeyError or the default of a defaultdict are Python's own. Each dict becomes a state field
of that name, a dict with the key's entry or none. A key whose entries are all gone is forgotten.
"""

from __future__ import annotations

import datetime as dt
import decimal
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from pyspark.sql import Row
from pyspark.sql import types as sql

from braided.dict_functions.analysis import recognise
from braided.dict_functions.binding import Bound, bind, claim, field_names, field_type
from braided.dict_functions.sharing import sharing_check
from braided.errors import DefinitionError, StateValueError
from braided.operator.definition import Operator, OperatorType, state_codec

__all__ = ["ManagedOperator", "managed"]


def managed(
    function: Callable[[Any], Any], *, state: Mapping[str, Any] | None = None
) -> type[Operator]:
    """An Operator class that does what the function does, for each key on its own.

    `state` gives the types of dicts that have no annotation: `state={"last": dict[str, float]}`.
    Also a decorator. A function that does not fit is refused, by line and piece of code.
    """
    analysis = recognise(function)
    kinds = {name: field_type(analysis, name, state or {}) for name in analysis.dicts}
    for name in state or {}:
        if name not in analysis.dicts:
            analysis.definition.refuse(None, f"has no state dict {name!r}, which state= names")
    fields = field_names(analysis)
    bound = bind(analysis, fields)
    yields = function.__code__.co_flags & _GENERATOR
    space: dict[str, Any] = {
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "__doc__": function.__doc__,
        "__annotations__": {fields[name]: kinds[name] for name in analysis.dicts},
        **{fields[name]: {} for name in analysis.dicts},
        "_bound": bound,
        "_key": analysis.key,
        "_single": analysis.single,
        "onRow": _yielding if yields else _returning,
    }
    cls: Any = OperatorType(function.__name__, (ManagedOperator,), space)
    analysis.check_values(state_codec(cls).classes())
    claim(analysis)
    operator: type[Operator] = cls
    return operator


_GENERATOR = 0x20  # inspect.CO_GENERATOR


class ManagedOperator(Operator, abstract=True):
    """What `braided.managed` makes operators from."""

    _bound: ClassVar[Bound]
    _key: ClassVar[tuple[str, ...]]
    _single: ClassVar[bool]

    @classmethod
    def keyColumns(cls, columns: Iterable[str]) -> tuple[str, ...]:
        """The columns that make the key, which have to be among those of the stream."""
        names = list(columns)
        for name in cls._key:
            if name not in names:
                raise DefinitionError(
                    f"{cls.__name__} keeps its state by row.{name}, but the stream has no column "
                    f"{name!r}: {', '.join(names)}"
                )
        return cls._key

    @classmethod
    def checkGrouping(cls, columns: Iterable[Any], key: sql.StructType) -> None:
        """Refuses a stream that is grouped by something else than the key of the function."""
        names = [column if isinstance(column, str) else None for column in columns]
        if sorted(map(str, names)) != sorted(set(cls._key)):
            by = ", ".join(name if name else "an expression" for name in names)
            wanted = ", ".join(map(repr, cls._key))
            raise DefinitionError(
                f"{cls.__name__} keeps its state by ({', '.join(cls._key)}), but the stream is "
                f"grouped by ({by}); write .groupBy({wanted}), or .apply(...) without groupBy"
            )
        for field in key.fields:
            _check_column(cls, field)


class _Lending:
    """Gives the function the dicts of one operator instance for the time of a row."""

    def __init__(self, operator: type[ManagedOperator]) -> None:
        self.function = operator._bound.function
        places = list(operator._bound.places())
        self._fields = [field for field, _, _ in places]
        self._plain = [(field, put) for field, empty, put in places if type(empty) is dict]
        self._other = [place for place in places if type(place[1]) is not dict]
        values = {field.name: typing.get_args(field.type)[1] for field in operator._fields}
        self._check = sharing_check(values)

    def begin(self, op: Operator) -> list[tuple[str, dict[Any, Any]]]:
        """Puts the dicts into place; gives back those that are copies, as they are not plain."""
        for field, put in self._plain:
            put(getattr(op, field))
        lent = []
        for field, empty, put in self._other:
            entries = empty.copy()
            entries.update(getattr(op, field))
            put(entries)
            lent.append((field, entries))
        return lent

    def end(self, op: Operator, lent: list[tuple[str, dict[Any, Any]]]) -> None:
        """Takes the copies back, and checks what the function has left in its dicts."""
        for field, entries in lent:
            setattr(op, field, dict(entries))
        for field in self._fields:
            if getattr(op, field):
                break
        else:
            op.forget()
            return
        if self._check is None:
            return
        twice = self._check({field: getattr(op, field).values() for field in self._fields})
        if twice is not None:
            raise StateValueError(
                f"{type(op).__name__} has one and the same object in two places of its state "
                f"({twice}); it would be two after the batch: store a copy"
            )


# Not an attribute of the class, which travels to workers; made there, once per process.
_lendings: dict[type, _Lending] = {}


def _lending(cls: type[ManagedOperator]) -> _Lending:
    lending = _lendings.get(cls)
    if lending is None:
        lending = _lendings[cls] = _Lending(cls)
    return lending


def _yielding(self: Any, row: Any) -> Iterator[Any]:
    lending = _lending(type(self))
    lent = lending.begin(self)
    yield from lending.function(row)
    lending.end(self, lent)


def _returning(self: Any, row: Any) -> Any:
    lending = _lending(type(self))
    lent = lending.begin(self)
    result = lending.function(row)
    if isinstance(result, Iterable) and not isinstance(result, dict | Row | str | bytes):
        result = list(result)  # what is lazy has to run while the function has these dicts
    lending.end(self, lent)
    return result


# --- the key's columns ------------------------------------------------------------------------

_PYTHON: tuple[tuple[type[sql.DataType], type], ...] = (
    (sql.StringType, str),
    (sql.BooleanType, bool),
    (sql.IntegralType, int),
    (sql.DecimalType, decimal.Decimal),
    (sql.FractionalType, float),
    (sql.DateType, dt.date),
    (sql.TimestampNTZType, dt.datetime),
    (sql.DayTimeIntervalType, dt.timedelta),
)
"""Types whose values are equal in Python exactly if they are in Spark."""


def _check_column(cls: type[ManagedOperator], column: sql.StructField) -> None:
    """Sees that a key column's values make one dict key per group, of the type that is declared."""
    kind = column.dataType
    python = next((python for spark, python in _PYTHON if isinstance(kind, spark)), None)
    if python is None:
        why = (
            "two instants can be the same local time in Python; cast it to timestamp_ntz or string"
            if isinstance(kind, sql.TimestampType)
            else "its values are no dict keys in Python; make a column of it that is"
        )
        raise DefinitionError(
            f"{cls.__name__} has the key {column.name}, of type {kind.simpleString()}: {why}"
        )
    for field in cls._fields:
        declared = typing.get_args(field.type)[0]
        if not cls._single:
            parts = typing.get_args(declared) if typing.get_origin(declared) is tuple else ()
            declared = parts[cls._key.index(column.name)] if len(parts) == len(cls._key) else None
        union = typing.get_origin(declared) in (typing.Union, types.UnionType)
        if python not in (typing.get_args(declared) if union else (declared,)):
            raise DefinitionError(
                f"{cls.__name__}.{field.name} is of type {field.type}, but the key column "
                f"{column.name} is {kind.simpleString()}, whose values are {python.__name__}"
            )
