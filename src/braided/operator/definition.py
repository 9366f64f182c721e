"""`Operator`: a plain class whose annotated fields are the state of one key.

    class Threshold(braided.Operator):
        stored: float = float("-inf")

        def onRow(self, row):
            if abs(row.value - self.stored) > 10:
                self.stored = row.value
                yield row

A task holds one instance and lends it to one key after the other: the fields are loaded before
the key's rows and stored after them. Instances have slots for exactly the declared fields, so a
misspelled `self.stord = 1` raises instead of being lost at the end of the batch.

The class a user defines has no slots of its own; instances are made from a sealed subclass that
adds them (`_seal`). cloudpickle rebuilds classes of `__main__` without their slots, and so
the layout has to be something that any process can make again from the list of fields.

Fields annotated with `Param` are not state but settings of the class: see `params.py`.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from braided.errors import OperatorDefinitionError
from braided.operator.class_statement import FieldsType
from braided.operator.hints import field_hints
from braided.operator.merging import Merged, MergeField, merge_fields
from braided.operator.params import check_name, check_param, is_param, params_of
from braided.operator.renaming import Renamed
from braided.operator.times import as_datetime, as_ms
from braided.store.records.codec import StateCodec
from braided.store.records.state_fields import Field

if TYPE_CHECKING:
    from pyspark.sql import Row

__all__ = ["HOOKS", "TASK_HOOKS", "Operator", "OperatorType", "state_codec"]

HOOKS = ("onRow", "onBatch", "onLeft", "onRight", "onTimer")
TASK_HOOKS = ("onOpen", "onClose")


class OperatorType(FieldsType):
    """Turns annotated fields into state, and refuses a class that can't run when it is defined."""

    @classmethod
    def _reserved(mcs) -> Mapping[str, str]:
        return _RESERVED

    @classmethod
    def _define(
        mcs, name: str, bases: tuple[type, ...], space: dict[str, Any], abstract: bool
    ) -> Any:
        hints = field_hints(name, space)
        params = params_of(name, bases, space, hints, _OWN_NAMES)
        merges = _merges_of(bases, space)
        fields = _inherited(bases)
        fields.update(_own_fields(name, space, hints, fields))
        kept = {key: value for key, value in space.items() if key not in fields}
        _refuse_shared(name, kept, params)
        kept["__slots__"] = ()
        cls = type.__new__(mcs, name, bases, kept)
        cls._fields = tuple(fields.values())
        cls._params = params
        cls._merges = merges
        if merges and not abstract:
            _merge_by_fields(cls)
        _check(cls, abstract)
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        cls.check_params()
        return type.__call__(_seal(cls), *args, **kwargs)

    _fields: tuple[Field, ...]
    _merges: dict[str, MergeField]


_RESERVED = {
    "__slots__": "Braided makes the slots from the annotated fields; remove it",
    "__init__": (
        "it would not run for each key; give the annotated fields defaults, that is how the "
        "state of a new key starts"
    ),
    "__new__": "instances are made by Braided, one per task; remove it",
    "__setattr__": "state is assigned to plain fields; remove it",
    "__getattr__": "state is read from plain fields; remove it",
    "__getattribute__": "state is read from plain fields; remove it",
}


class Operator(metaclass=OperatorType):
    """The state and behaviour of one key. Subclass it, annotate fields, write `onRow`.

    Hooks, of which at least one is defined (`onRow` or `onBatch`, not both):

    - `onRow(self, row)`: for each row of the key, in order. Yields output rows (dicts or Rows
      by name, tuples or lists by position), or returns an iterable of them, or None.
    - `onBatch(self, rows)`: the key's rows as a `pyarrow.Table`; may be called several times for
      one key and batch. Yields rows as above, or Arrow tables.
    - `onLeft(self, row)` and `onRight(self, row)`, in place of these, for two inputs
      (`braided.connect`).
    - `onTimer(self, fired)`: when a timer that the key has set is due.

    Around the keys of a task:

    - `onOpen(self)`: once, before the first key. What it returns is `self.opened` from then on.
    - `onClose(self)`: once, at the end, also when a hook has raised; only if `onOpen` returned.

    `merge(self, other)` takes the state of another into this one. With it a key that is too hot for
    one channel may be split: its rows go to several channels, each of which begins the batch with
    a new state, and what they come to is merged into the key's own at the end of the batch.

    `upgrade(cls, old)`, a classmethod, makes the state of this class from that of an earlier one.

    A class that is only a base for others is defined with `class Base(Operator, abstract=True)`.
    """

    __slots__ = ("_forgotten", "_timers", "batchTime", "key", "opened", "watermark")

    _fields: ClassVar[tuple[Field, ...]] = ()
    _params: ClassVar[dict[str, Any]] = {}
    _merges: ClassVar[dict[str, MergeField]] = {}

    key: Row
    """The grouping columns of the key at hand."""

    batchTime: datetime
    """The batch's processing time: local time without a zone, as in Spark's Rows."""

    watermark: datetime | None
    """The event time before which no more rows are expected; None without a watermark."""

    opened: Any
    """What `onOpen` returned; None without it."""

    _timers: set[int] | None  # None: not one; most keys have none
    _forgotten: bool

    def __init__(self) -> None:
        self._timers = None
        self._forgotten = False
        self.watermark = None
        self.opened = None
        state_codec(type(self)).load(self, None)

    @classmethod
    def with_(cls, **params: Any) -> type[Self]:
        """This operator with parameters set; it continues the same state under the same name."""
        for name, value in params.items():
            check_param(cls.__name__, name, cls._params, value)
        space = {key: getattr(cls, key) for key in ("__module__", "__qualname__", "__doc__")}
        derived: Any = type.__new__(OperatorType, cls.__name__, (cls,), {**space, "__slots__": ()})
        derived._fields, derived._params = cls._fields, cls._params
        for name, value in params.items():
            setattr(derived, name, value)
        _codecs[derived] = state_codec(cls)
        return derived  # type: ignore[no-any-return]

    def setTimer(self, when: datetime | int) -> None:
        """Have `onTimer` called at this time (a datetime, or ms since 1970), once.

        The key may have many timers; setting one twice is setting it once. One that is due
        already fires after the rows of this batch, or in the next batch if `onTimer` sets it.
        """
        ms = as_ms(when)
        if not hasattr(self, "onTimer"):
            raise OperatorDefinitionError(
                f"{type(self).__name__} sets a timer but has no onTimer(self, fired) to call"
            )
        if self._timers is None:
            self._timers = {ms}
        else:
            self._timers.add(ms)

    def deleteTimer(self, when: datetime | int) -> None:
        """Take back a timer of this key; nothing happens if there is none at that time."""
        ms = as_ms(when)
        if self._timers is not None:
            self._timers.discard(ms)

    def timers(self) -> list[datetime]:
        """The key's pending timers, earliest first."""
        return [as_datetime(ms) for ms in sorted(self._timers or ())]

    def forget(self) -> None:
        """Drop the key: its fields start from their defaults again, its timers are gone.

        The key is stored no longer, unless a field is changed or a timer set after this.
        """
        state_codec(type(self)).load(self, None)
        self._timers = None
        self._forgotten = True

    def __repr__(self) -> str:
        state = ", ".join(
            f"{field.name}={getattr(self, field.name, None)!r}" for field in self._fields
        )
        return f"{type(self).__name__}({state})"


# Not attributes of the class: cloudpickle would ship them. A class stays here, and alive, so that a
# worker that is sent it again with the next batch finds what it made for the last one.
_codecs: dict[type, StateCodec] = {}
_sealed: dict[type, type] = {}


def state_codec(cls: type[Operator]) -> StateCodec:
    """The codec of the class's fields, made once per process."""
    codec = _codecs.get(cls)
    if codec is None:
        upgrade = getattr(cls, "upgrade", None)
        codec = _codecs[cls] = StateCodec(cls.__name__, cls._fields, upgrade)
    return codec


def _seal(cls: OperatorType) -> type:
    """The subclass that has a slot for each field, and so no room for anything else."""
    sealed = _sealed.get(cls)
    if sealed is None:
        space = {
            "__slots__": tuple(field.name for field in cls._fields),
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
        }
        sealed = type.__new__(OperatorType, cls.__name__, (cls,), space)
        _codecs[sealed] = state_codec(cls)  # type: ignore[arg-type]
        _sealed[cls] = _sealed[sealed] = sealed
    return sealed


# --- reading a class --------------------------------------------------------------------------


def _inherited(bases: tuple[type, ...]) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for base in bases:
        for field in getattr(base, "_fields", ()):
            fields.setdefault(field.name, field)
    return fields


def _merges_of(bases: tuple[type, ...], space: dict[str, Any]) -> dict[str, MergeField]:
    """How the fields of a class merge that say so; their defaults are then plain ones."""
    merges: dict[str, MergeField] = {}
    for base in bases:
        merges = {**getattr(base, "_merges", {}), **merges}
    for attribute, value in space.items():
        if isinstance(value, Merged):
            merges[attribute] = value.how
            space[attribute] = value.default
    return merges


def _merge_by_fields(cls: Any) -> None:
    """Gives a class the `merge` that its fields say, which all of them must."""
    name, said = cls.__name__, next(iter(cls._merges))
    own = getattr(cls, "merge", merge_fields)
    if own is not merge_fields:
        raise OperatorDefinitionError(
            f"{name}.{said} says how it merges, and {name}.merge does so too; keep one of them"
        )
    for field in cls._fields:
        if field.name not in cls._merges:
            raise OperatorDefinitionError(
                f"{name}.{said} says how it merges and {name}.{field.name} does not: write "
                f"`{field.name}: ... = braided.merged(how, default=...)` too, or a merge(self, "
                "other) for all of them"
            )
        new = field.default
        if new is not None and not _is_neutral(cls._merges[field.name], new):
            raise OperatorDefinitionError(
                f"{name}.{field.name} begins with {new!r}, which merging does not leave as it is: "
                "each share of a split key begins every batch with it, so it would count again and "
                "again. Begin with None, or with a value that changes nothing"
            )
    cls.merge = merge_fields


def _is_neutral(how: MergeField, new: Any) -> bool:
    """Whether merging two new states gives a new one."""
    try:
        return bool(how(new, new) == new)
    except Exception:  # what it can't do with two defaults, it may do with values
        return True


def _own_fields(
    name: str, space: dict[str, Any], hints: dict[str, Any], inherited: dict[str, Field]
) -> Iterator[tuple[str, Field]]:
    for attribute, hint in hints.items():
        if is_param(hint):
            continue
        check_name(name, attribute, _OWN_NAMES)
        if attribute.startswith("_"):
            raise OperatorDefinitionError(
                f"{name}.{attribute}: a state field can't start with an underscore; rename it, "
                "or annotate it with ClassVar if it is not state"
            )
        if attribute not in space:
            raise OperatorDefinitionError(
                f"{name}.{attribute} has no default; write `{attribute}: ... = value`, the value "
                "that the field has for a new key"
            )
        yield attribute, _field(attribute, hint, space[attribute])
    for attribute, field in inherited.items():
        if attribute in space and attribute not in hints:  # a new default, without the type
            yield attribute, _field(attribute, field.type, space[attribute], field.earlier)


def _refuse_shared(name: str, space: dict[str, Any], params: dict[str, Any]) -> None:
    """State that was not annotated: what can be changed in place would be every key's."""
    annotated = space.get("__annotations__", {})
    for attribute, value in space.items():
        shared = isinstance(value, list | dict | set | bytearray | deque)
        if not shared or attribute.startswith("__"):
            continue
        if attribute not in annotated and attribute not in params:
            kind = type(value).__name__
            raise OperatorDefinitionError(
                f"{name}.{attribute} is a {kind} that all keys of a worker would share. If it is "
                f"state, annotate it: `{attribute}: {kind}[...] = ...`; if it is a constant, "
                "annotate it with ClassVar or make it a tuple"
            )


def _field(name: str, hint: Any, default: Any, earlier: tuple[str, ...] = ()) -> Field:
    if isinstance(default, Renamed):
        return Field(name, hint, default.default, default.earlier)
    return Field(name, hint, default, earlier)


def _check(cls: OperatorType, abstract: bool) -> None:
    name = cls.__name__
    codec = StateCodec(name, cls._fields)  # refuses what can't be stored
    for part in codec.classes():
        by_value = part.__module__ == "__main__" or "<locals>" in part.__qualname__
        if by_value and issubclass(part, msgspec.Struct):
            raise OperatorDefinitionError(
                f"{name} has state of type {part.__name__}, a msgspec.Struct that cloudpickle "
                "can't send to workers from where it is defined; define it at the top of an "
                "importable module, or use a dataclass"
            )
    if cls.__dictoffset__:
        loose = next(c for c in reversed(cls.__mro__) if c.__dictoffset__)
        raise OperatorDefinitionError(
            f"{name} inherits from {loose.__name__}, which lets instances have any attribute, and "
            f"those would be lost between batches; give {loose.__name__} `__slots__ = ()`"
        )
    for field in cls._fields:
        if any(field.name in vars(base) for base in cls.__mro__):
            raise OperatorDefinitionError(
                f"{name}.{field.name} is a state field in one base class and a plain attribute "
                "in another; rename one of them"
            )
    hooks = [hook for hook in HOOKS if getattr(cls, hook, None) is not None]
    names = {field.name for field in cls._fields}
    for field in cls._fields:
        for earlier in names.intersection(field.earlier):
            raise OperatorDefinitionError(
                f"{name}.{field.name} says it was {earlier!r}, which is a field of its own here"
            )
    if hasattr(cls, "upgrade") and not inspect.ismethod(cls.upgrade):
        raise OperatorDefinitionError(
            f"{name}.upgrade must be a classmethod: @classmethod def upgrade(cls, old)"
        )
    for hook in (*hooks, *TASK_HOOKS, "merge"):
        if getattr(cls, hook, None) is not None:
            _check_hook(name, hook, getattr(cls, hook))
    if "onRow" in hooks and "onBatch" in hooks:
        raise OperatorDefinitionError(
            f"{name} has both onRow and onBatch; a key's rows go one way: keep one of them"
        )
    if not hooks and not abstract:
        raise OperatorDefinitionError(
            f"{name} has none of {', '.join(HOOKS)}, so nothing would happen; define one, "
            f"or write `class {name}(Operator, abstract=True)` if it is only a base class"
        )


def _check_hook(name: str, hook: str, function: Any) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise OperatorDefinitionError(f"{name}.{hook} is async; write a plain function")
    takes = {"onBatch": ", rows", "onTimer": ", fired", "merge": ", other"}.get(hook, ", row")
    if hook in TASK_HOOKS:
        takes = ""
    try:
        inspect.signature(function).bind(*[None] * (2 if takes else 1))
    except (TypeError, ValueError) as error:
        raise OperatorDefinitionError(
            f"{name}.{hook} is called as {hook}(self{takes}): {error}"
        ) from None
    if not takes and inspect.isgeneratorfunction(function):
        raise OperatorDefinitionError(f"{name}.{hook} yields; it is called once and gives no rows")


_OWN_NAMES = frozenset(dir(Operator)) | frozenset(HOOKS) | frozenset(TASK_HOOKS) | {"upgrade"}
