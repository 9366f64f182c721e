"""What a managed function may use from outside itself, judged by the values behind its names.

Its results have to depend on the row and on the state of the row's key alone. So a name from
outside may stand for a value that never changes, for a container that is only read, or for code
that has no memory: functions and classes whose own source passes the same analysis, and parts of
the standard library and numpy that are known to have none.
"""

from __future__ import annotations

import builtins
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import inspect
import re
import types
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any

import msgspec
import numpy as np

__all__ = [
    "READERS",
    "READ_METHODS",
    "class_parts",
    "is_constant",
    "is_immutable",
    "is_read_only",
    "known_code",
    "user_classes",
    "why_not_code",
]

READ_METHODS = frozenset(
    [
        *("copy", "count", "difference", "get", "index", "intersection", "isdisjoint", "issubset"),
        *("issuperset", "items", "keys", "symmetric_difference", "union", "values"),
    ]
)
"""Methods of list, set and dict that change nothing."""

READERS = (
    *(all, any, dict, enumerate, frozenset, len, list, max, min, reversed, set, sorted, sum),
    *(tuple, zip),
)
"""Builtins that read a container and keep no hold of it."""

_BUILTINS = frozenset(
    [
        *("abs", "all", "any", "ascii", "bin", "bool", "bytearray", "bytes", "callable", "chr"),
        *("complex", "dict", "divmod", "enumerate", "filter", "float", "format", "frozenset"),
        *("getattr", "hasattr", "hex", "int", "isinstance", "issubclass", "iter", "len", "list"),
        *("map", "max", "min", "next", "object", "oct", "ord", "pow", "print", "range", "repr"),
        *("reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "zip"),
    ]
)
_LIBRARY = frozenset(
    [
        *("base64", "binascii", "bisect", "blake2", "calendar", "cmath", "collections"),
        *("colorsys", "copy", "dataclasses", "datetime", "decimal", "difflib", "enum"),
        *("fractions", "functools", "hashlib", "heapq", "html", "ipaddress", "itertools", "json"),
        *("math", "numbers", "numpy", "operator", "re", "sha2", "sre", "statistics", "string"),
        *("struct", "textwrap", "typing", "unicodedata", "uuid", "zlib"),
    ]
)
_CLOCKS = frozenset(["now", "utcnow", "today", "uuid1", "uuid4"])
_HIDDEN_STATE = frozenset(
    [
        *("cache", "lru_cache", "getcontext", "setcontext", "localcontext", "register"),
        *("seterr", "seterrcall", "set_printoptions", "singledispatch"),
    ]
)
_CODE = (
    *(type, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
)
_SCALARS = (
    *(type(None), bool, int, float, complex, str, bytes, range, object, type(...), slice),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern),
    *(dt.date, dt.datetime, dt.time, dt.timedelta, dt.timezone),
)


def is_immutable(value: Any) -> bool:
    """Whether nothing in the value can ever change."""
    kind = type(value)
    if kind in _SCALARS or isinstance(value, np.generic):
        return True
    if isinstance(value, enum.Enum):
        return all(is_immutable(v) for name, v in vars(value).items() if name[:2] != "__")
    if isinstance(value, tuple) and (kind is tuple or hasattr(kind, "_fields")):
        return all(map(is_immutable, value))
    if kind is frozenset:
        return all(map(is_immutable, value))
    if is_dataclass(value) and not isinstance(value, type):
        frozen = kind.__dataclass_params__.frozen
        return frozen and all(
            is_immutable(getattr(value, f.name)) for f in dataclasses.fields(value)
        )
    return False


def user_classes(value: Any) -> Iterator[type]:
    """The classes of Enum members, named tuples and frozen dataclasses in an unchanging value.

    Their methods can be called on it.
    """
    kind = type(value)
    if kind in (dict, OrderedDict, Counter, types.MappingProxyType):
        for item in (*value.keys(), *value.values()):
            yield from user_classes(item)
    elif isinstance(value, tuple | list | set | frozenset):
        for item in value:
            yield from user_classes(item)
    if isinstance(value, enum.Enum) or (isinstance(value, tuple) and kind is not tuple):
        yield kind
    elif is_dataclass(value) and not isinstance(value, type):
        yield kind
        for field in dataclasses.fields(value):
            yield from user_classes(getattr(value, field.name))


def is_read_only(value: Any) -> bool:
    """Whether it is a container that can be read without getting hold of anything mutable."""
    kind = type(value)
    if kind in (dict, OrderedDict, Counter, types.MappingProxyType):
        return all(map(is_immutable, value)) and all(map(is_immutable, value.values()))
    return kind in (list, set) and all(map(is_immutable, value))


def known_code(value: Any) -> bool:
    """Whether it is code of Python or a library that is known to keep nothing between calls."""
    if isinstance(value, np.ufunc | type(np.sum)):
        return True
    if not isinstance(value, _CODE):
        return False  # an object of a library can remember: itertools.count(), a partial
    owner = getattr(value, "__self__", None)
    if not (owner is None or isinstance(owner, type | types.ModuleType) or is_immutable(owner)):
        return False  # a method of something that can change, such as `push = shared.append`
    if isinstance(value, type) and issubclass(value, BaseException):
        return value.__module__ == "builtins"
    module, name = _home(value), getattr(value, "__name__", "")
    if name in _CLOCKS or name in _HIDDEN_STATE:
        return False
    if module == "builtins":
        is_builtin = vars(builtins).get(name) is value
        return name in _BUILTINS if is_builtin else not isinstance(value, type)
    if module.startswith("numpy.random"):
        return False
    if module == "pyspark.sql.types":
        return name == "Row"
    if module.partition(".")[0] == "urllib":
        return module == "urllib.parse"
    return module.partition(".")[0].lstrip("_") in _LIBRARY


def why_not_code(value: Any) -> str | None:
    """Why code that is not known can't be used, where there is a better answer than that."""
    name = getattr(value, "__name__", "")
    module = _home(value)
    if name in _CLOCKS and module.partition(".")[0] in ("datetime", "uuid", "_datetime"):
        return "gives something else each time; take the time from a column of the row"
    if module == "builtins":
        if name in ("hash", "id"):
            return "differs from process to process"
        return "can reach or change what the analysis does not see"
    if inspect.isbuiltin(value) or isinstance(value, types.MethodType):
        return "is not known to keep nothing between calls"
    return None


def _home(value: Any) -> str:
    """The module that a function, a method of a builtin type or a class is from."""
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    if owner is not None and not inspect.ismodule(owner):
        owner = owner if isinstance(owner, type) else type(owner)
        return str(owner.__module__)
    return str(getattr(value, "__module__", None) or "")


def class_parts(cls: type, refuse: Callable[[str], Any]) -> Iterator[types.FunctionType]:
    """The functions of a user's class that have to be looked at; refuses what can't be."""
    if type(cls) is not type and not known_code(type(cls)) and _home(type(cls)) != "msgspec._core":
        refuse(f"is a class made by {type(cls).__name__}, which can do anything")
    for base in cls.__mro__:
        if base is object or known_code(base) or base.__module__.partition(".")[0] == "msgspec":
            continue
        for name, made in _defaults(base):
            if not (is_immutable(made) or known_code(made) or is_constant(made)):
                refuse(f"gives {base.__name__}.{name} a default that could be shared by all keys")
        for name, value in vars(base).items():
            yield from _functions(base, name, value, refuse)


def _defaults(cls: type) -> Iterator[tuple[str, Any]]:
    """What objects of a dataclass, named tuple or Struct start with, or what makes it."""
    yield from getattr(cls, "_field_defaults", {}).items()
    if is_dataclass(cls):
        for field in dataclasses.fields(cls):
            if field.default_factory is not dataclasses.MISSING:
                yield field.name, field.default_factory
    if issubclass(cls, msgspec.Struct):
        for info in msgspec.structs.fields(cls):
            if info.default_factory is not msgspec.NODEFAULT:
                yield info.name, info.default_factory


def is_constant(factory: Any) -> bool:
    """A function without arguments that depends on nothing but itself and Python's own types."""
    if not isinstance(factory, types.FunctionType) or factory.__closure__:
        return False
    code = factory.__code__
    return (
        not any(isinstance(const, types.CodeType) for const in code.co_consts)
        and all(map(is_immutable, factory.__defaults__ or ()))
        and all(
            name not in factory.__globals__ and known_code(getattr(builtins, name, None))
            for name in code.co_names
        )
    )


def _functions(
    base: type, name: str, value: Any, refuse: Callable[[str], Any]
) -> Iterator[types.FunctionType]:
    if isinstance(value, staticmethod):
        value = value.__func__
    parts = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)
    for part in parts:
        if isinstance(part, types.FunctionType):
            if not _generated(base, part):
                yield part
        elif isinstance(part, classmethod):
            if not _generated(base, part.__func__):
                refuse(f"has the class method {base.__name__}.{name}, which could change the class")
        elif _machinery(name) or inspect.isdatadescriptor(part):
            continue
        elif not is_immutable(part) and not known_code(part) and not isinstance(part, type):
            refuse(f"shares {base.__name__}.{name}, a {type(part).__name__}, between all keys")


def _generated(base: type, function: Any) -> bool:
    """Whether it was written by dataclass, NamedTuple or Enum and not by the user."""
    name = function.__name__
    has_generated = is_dataclass(base) or hasattr(base, "_field_defaults")
    dunder = name.startswith("__") and name.endswith("__")
    file = function.__code__.co_filename
    by_python = has_generated and dunder and file in ("<string>", dataclasses.__file__)
    return known_code(function) or by_python


def _machinery(name: str) -> bool:
    """What Python, Enum and NamedTuple keep on a class."""
    return (name.startswith("_") and name.endswith("_")) or name == "_field_defaults"
