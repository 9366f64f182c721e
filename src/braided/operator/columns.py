"""`ColumnOperator`: the state of many keys as one Arrow table, and one call for all of them.

    class Totals(braided.ColumnOperator):
        count: pa.int64() = 0
        total: pa.float64() = 0.0

        def onRows(self, state, rows, index):
            count = state["count"].to_numpy() + np.bincount(index)
            total = state["total"].to_numpy() + np.bincount(index, rows["value"].to_numpy())
            return {"count": count, "total": total}

A task holds one instance, which keeps nothing: it has no room for attributes, so that what belongs
to a key can only go into the columns.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.errors import OperatorDefinitionError
from braided.operator.class_statement import FieldsType
from braided.operator.hints import field_hints
from braided.operator.merging import Merged, MergeField
from braided.operator.params import check_name, check_param, is_param, params_of
from braided.operator.renaming import Renamed
from braided.store.columnar.fields import DUE, DUE_TYPE, REMOVE, ColumnCodec, ColumnField

__all__ = ["COLUMN_HOOKS", "ColumnOperator", "ColumnOperatorType", "column_codec"]
__all__ += ["matrix", "turns"]

COLUMN_HOOKS = ("onRows", "onDue")
_TAKES = {
    "onRows": ("state", "rows", "index"),
    "onDue": ("state", "due"),
    "merge": ("state", "other"),
    "onOpen": (),
    "onClose": (),
}
_RESERVED = {
    "__slots__": "an instance keeps nothing; remove it",
    "__init__": "it would not run for each key; fields have defaults, and onOpen opens things",
    "__new__": "instances are made by Braided, one per task; remove it",
}


class ColumnOperatorType(FieldsType):
    """Turns annotated fields into columns, and refuses a class that can't run at its definition."""

    _fields: tuple[ColumnField, ...]
    _merges: dict[str, MergeField]

    @classmethod
    def _reserved(mcs) -> Mapping[str, str]:
        return _RESERVED

    @classmethod
    def _define(
        mcs, name: str, bases: tuple[type, ...], space: dict[str, Any], abstract: bool
    ) -> Any:
        hints = field_hints(name, space)
        params = params_of(name, bases, space, hints, _OWN_NAMES)
        fields: dict[str, ColumnField] = {}
        merges: dict[str, MergeField] = {}
        for base in reversed(bases):
            fields |= {f.name: f for f in getattr(base, "_fields", ()) if f.name != DUE}
            merges |= getattr(base, "_merges", {})
        merges |= {key: value.how for key, value in space.items() if isinstance(value, Merged)}
        fields |= {field.name: field for field in _own_fields(name, space, hints)}
        kept = {key: value for key, value in space.items() if key not in fields}
        cls = type.__new__(mcs, name, bases, {**kept, "__slots__": ()})
        cls._params, cls._merges = params, merges
        if hasattr(cls, "onDue"):
            fields[DUE] = ColumnField(DUE, DUE_TYPE, None)
        cls._fields = tuple(fields.values())
        _check(cls, abstract)
        return cls


class ColumnOperator(metaclass=ColumnOperatorType):
    """State and behaviour of many keys at once. Annotate fields with Arrow types, write `onRows`.

    - `onRows(self, state, rows, index)`: `state` is a table with a row for each key, `rows` one
      with all their rows, those of a key side by side and in order; `index[i]` is the row of
      `state` that `rows[i]` belongs to. Every key has at least one row.
    - `onDue(self, state, due)`: keys whose column `due` has come. A class that has it has a column
      `due` (a timestamp, null at first) in its state.

    Both return the new state: columns by name, as a dict of arrays, an Arrow, pandas or Polars
    table; what is left out stays as it is, and None changes nothing. A column `remove` says which
    keys to drop. A tuple of state and output gives rows out, one for each of `rows` or one for each
    key; in a tuple of three, the third says which of `rows` (of the keys, in `onDue`) each
    came from, as positions or as a mask.

    `merge(self, state, other)` returns one state of two, so that hot keys can be split, as
    `braided.merged` does field by field. `onOpen(self)`, `onClose(self)`, parameters, `renamed` and
    the classmethod `upgrade(cls, old)`, which is given a table, are as with `Operator`.

    What comes out for a key must not depend on which others are in the same call.
    """

    __slots__ = ("batchTime", "keys", "opened", "watermark")

    _fields: ClassVar[tuple[ColumnField, ...]] = ()
    _params: ClassVar[dict[str, Any]] = {}
    _merges: ClassVar[dict[str, MergeField]] = {}

    keys: pa.Table
    """The grouping columns, a row for each key of the call."""

    batchTime: np.datetime64
    """The batch's processing time, in UTC as columns of times are in NumPy."""

    watermark: np.datetime64 | None
    """The event time before which no more rows are expected; None without a watermark."""

    opened: Any
    """What `onOpen` returned; None without it."""

    def __init__(self) -> None:
        type(self).check_params()
        self.opened = None
        self.watermark = None

    @classmethod
    def with_(cls, **params: Any) -> type[Self]:
        """This operator with parameters set; it continues the same state under the same name."""
        for name, value in params.items():
            check_param(cls.__name__, name, cls._params, value)
        space = {key: getattr(cls, key) for key in ("__module__", "__qualname__", "__doc__")}
        space["__slots__"] = ()
        derived: Any = type.__new__(ColumnOperatorType, cls.__name__, (cls,), space)
        derived._fields, derived._params, derived._merges = cls._fields, cls._params, cls._merges
        for name, value in params.items():
            setattr(derived, name, value)
        return derived  # type: ignore[no-any-return]


_codecs: dict[type, ColumnCodec] = {}


def column_codec(cls: type[ColumnOperator]) -> ColumnCodec:
    """The codec of the class's fields, made once per process."""
    codec = _codecs.get(cls)
    if codec is None:
        upgrade = getattr(cls, "upgrade", None)
        codec = _codecs[cls] = ColumnCodec(cls.__name__, cls._fields, upgrade)
    return codec


# --- for hooks --------------------------------------------------------------------------------


def turns(index: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Positions of rows, so that each turn has at most one row of every key, in their order.

    For what depends on the row before: the first rows of all keys, then the second ones, and so on.

        for turn in braided.turns(index):
            level[index[turn]] += alpha * (value[turn] - level[index[turn]])
    """
    if not len(index):
        return
    starts = np.flatnonzero(np.diff(index, prepend=index[0] - 1))
    lengths = np.diff(starts, append=len(index))
    rank = np.arange(len(index)) - np.repeat(starts, lengths)
    order = np.argsort(rank, kind="stable")
    begin = 0
    for size in np.bincount(rank).tolist():
        yield order[begin : begin + size]
        begin += size


def matrix(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[Any]:
    """A column of lists of a fixed size as a matrix of its own, a row for each key.

    What is null is NaN; lists of integers must not have any.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    size = array.type.list_size
    items = array.values.slice(array.offset * size, len(array) * size)
    values = np.array(items.to_numpy(zero_copy_only=False)).reshape(-1, size)
    if array.null_count:
        if not np.issubdtype(values.dtype, np.floating):
            raise ValueError(f"a column of {array.type} with nulls has no matrix")
        values[np.asarray(array.is_null().to_numpy(zero_copy_only=False))] = np.nan
    return values


# --- reading a class --------------------------------------------------------------------------


def _own_fields(name: str, space: dict[str, Any], hints: dict[str, Any]) -> Iterator[ColumnField]:
    for attribute, hint in hints.items():
        if is_param(hint):
            continue
        check_name(name, attribute, _OWN_NAMES)
        if attribute in (DUE, REMOVE):
            why = (
                "a class that has onDue has it without saying so"
                if attribute == DUE
                else "it says, in what a hook returns, which keys to drop"
            )
            raise OperatorDefinitionError(f"{name}.{attribute}: this column is ours; {why}")
        if attribute.startswith("_"):
            raise OperatorDefinitionError(
                f"{name}.{attribute}: a state field can't start with an underscore; rename it, "
                "or annotate it with ClassVar if it is not state"
            )
        if attribute not in space:
            raise OperatorDefinitionError(
                f"{name}.{attribute} has no default; write `{attribute}: ... = value`, the value "
                "that a new key has"
            )
        kind = _arrow_type(name, attribute, hint)
        default, earlier = space[attribute], ()
        if isinstance(default, Renamed):
            default, earlier = default.default, default.earlier
        if isinstance(default, Merged):
            default = default.default
        yield ColumnField(attribute, kind, default, earlier)


def _arrow_type(name: str, attribute: str, hint: Any) -> pa.DataType:
    if typing.get_origin(hint) is Annotated:
        hint = next((each for each in hint.__metadata__ if isinstance(each, pa.DataType)), hint)
    if not isinstance(hint, pa.DataType):
        raise OperatorDefinitionError(
            f"{name}.{attribute}: a field of a ColumnOperator is annotated with an Arrow type, "
            f"such as pa.float64(), not with {getattr(hint, '__name__', hint)!r}. What is the same "
            "for all keys is a braided.Param, a constant a ClassVar"
        )
    return hint


def _check(cls: ColumnOperatorType, abstract: bool) -> None:
    name = cls.__name__
    ColumnCodec(name, cls._fields)  # refuses what can't be stored
    if cls.__dictoffset__:
        loose = next(c for c in reversed(cls.__mro__) if c.__dictoffset__)
        raise OperatorDefinitionError(
            f"{name} inherits from {loose.__name__}, which lets instances have any attribute, and "
            f"those would be lost between batches; give {loose.__name__} `__slots__ = ()`"
        )
    for hook, takes in _TAKES.items():
        if getattr(cls, hook, None) is not None:
            _check_hook(name, hook, takes, getattr(cls, hook))
    for foreign in ("onRow", "onBatch", "onLeft", "onRight", "onTimer"):
        if hasattr(cls, foreign):
            raise OperatorDefinitionError(
                f"{name}.{foreign} is a hook of braided.Operator; a ColumnOperator has "
                f"{' and '.join(COLUMN_HOOKS)}"
            )
    if hasattr(cls, "upgrade") and not inspect.ismethod(cls.upgrade):
        raise OperatorDefinitionError(
            f"{name}.upgrade must be a classmethod: @classmethod def upgrade(cls, old)"
        )
    if cls._merges:
        silent = [f.name for f in cls._fields if f.name not in cls._merges and f.name != DUE]
        if hasattr(cls, "merge") or silent:
            raise OperatorDefinitionError(
                f"{name}: either all fields say how they merge, with braided.merged, or merge"
                f"(self, state, other) does; {silent[0] if silent else 'merge'} does not fit"
            )
    if abstract:
        return
    if not hasattr(cls, "onRows"):
        raise OperatorDefinitionError(
            f"{name} has no onRows(self, state, rows, index), so nothing would happen; define it, "
            f"or write `class {name}(ColumnOperator, abstract=True)` if it is only a base class"
        )
    if not cls._fields:
        raise OperatorDefinitionError(
            f"{name} has no fields, so there is no state; annotate one, such as "
            "`count: pa.int64() = 0`, or use DataFrame methods, which need no keys"
        )


def _check_hook(name: str, hook: str, takes: tuple[str, ...], function: Any) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise OperatorDefinitionError(f"{name}.{hook} is async; write a plain function")
    if inspect.isgeneratorfunction(function):
        raise OperatorDefinitionError(
            f"{name}.{hook} yields; it returns the new state, or a tuple of state and output"
        )
    try:
        inspect.signature(function).bind(*[None] * (1 + len(takes)))
    except (TypeError, ValueError) as error:
        raise OperatorDefinitionError(
            f"{name}.{hook} is called as {hook}({', '.join(('self', *takes))}): {error}"
        ) from None


_OWN_NAMES = frozenset(dir(ColumnOperator)) | frozenset(_TAKES) | {"upgrade"}
