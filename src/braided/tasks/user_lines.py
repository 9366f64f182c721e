"""Which lines of a user's code an error comes from that shows only after the code has returned.

A row that does not fit is found when many are encoded at once, and a value of state when its key
is written. No traceback leads back to the code then, but the code itself tells where it gives rows
out and where it assigns a field.
"""

from __future__ import annotations

import dis
import inspect
import linecache
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import FunctionType
from typing import Any

__all__ = ["lines_of"]

_LINES_MAX = 3
_USES = ("STORE_ATTR", "LOAD_GLOBAL", "LOAD_DEREF")


def lines_of(code: Any, field: str | None = None) -> str:
    """Where a class assigns a field or a function uses its dict, or, if none is named, gives rows
    out; else where it begins. As a traceback has it; empty if nobody knows.
    """
    functions = list(_functions(code))
    if field is None:
        found = _found(functions, lambda each: each.opname == "YIELD_VALUE") or _returns(functions)
    else:
        found = _found(functions, lambda each: each.opname in _USES and each.argval == field)
    if not found:
        begins = [(each, each.__code__.co_firstlineno) for each in functions if _is_hook(each)]
        found = begins or [(each, each.__code__.co_firstlineno) for each in functions[:1]]
    return "\n".join(_as_in_a_traceback(function, line) for function, line in found[:_LINES_MAX])


def _functions(code: Any) -> Iterator[FunctionType]:
    """The functions of a class and of the classes of a user's that it is derived from."""
    if isinstance(code, FunctionType):
        yield code
    elif inspect.isclass(code):
        for each in code.__mro__:
            if each.__module__.partition(".")[0] not in ("braided", "pyspark", "builtins"):
                yield from (f for f in vars(each).values() if isinstance(f, FunctionType))


def _is_hook(function: FunctionType) -> bool:
    return function.__name__.startswith(("on", "handle"))


def _found(
    functions: list[FunctionType], is_wanted: Callable[[dis.Instruction], bool]
) -> list[tuple[FunctionType, int]]:
    lines: dict[tuple[FunctionType, int], None] = {}
    for function in functions:
        for each in dis.get_instructions(function):
            if is_wanted(each) and each.positions and each.positions.lineno:
                lines[function, each.positions.lineno] = None
    return list(lines)


def _returns(functions: list[FunctionType]) -> list[tuple[FunctionType, int]]:
    """Where hooks return something that they say: Python has them all return None at their end."""
    lines: dict[tuple[FunctionType, int], None] = {}
    for function in filter(_is_hook, functions):
        for before, each in pairwise(dis.get_instructions(function)):
            says = before.opname != "LOAD_CONST" or before.argval is not None
            if each.opname == "RETURN_VALUE" and says and each.positions and each.positions.lineno:
                lines[function, each.positions.lineno] = None
    return list(lines)


def _as_in_a_traceback(function: FunctionType, line: int) -> str:
    file = function.__code__.co_filename
    text = linecache.getline(file, line).strip()
    return f'  File "{file}", line {line}, in {function.__name__}' + (
        f"\n    {text}" if text else ""
    )
