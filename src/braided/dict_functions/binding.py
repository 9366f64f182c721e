"""From a recognised function to what an operator needs: typed fields, and the code over new dicts.

The function is not rewritten. Its code object runs as it is, with other dicts in the place of its
own: in its globals, or in the cells of its closure. Tracebacks show the user's own lines.
"""

from __future__ import annotations

import builtins
import types
import typing
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from braided.dict_functions.analysis import Analysis
from braided.dict_functions.outside import is_constant, known_code
from braided.operator.definition import HOOKS, Operator

__all__ = ["Bound", "bind", "claim", "field_names", "field_type"]


@dataclass(frozen=True)
class Bound:
    """A function whose dicts can be exchanged. Travels to workers as it is."""

    function: types.FunctionType
    dicts: tuple[tuple[str, str, dict[Any, Any]], ...]
    """For each dict the state field, the name that the function has for it, an empty one."""

    def places(self) -> Iterator[tuple[str, dict[Any, Any], Callable[[dict[Any, Any]], None]]]:
        """For each dict the state field, an empty one, and how the function is given another."""
        free = self.function.__code__.co_freevars
        for field, name, empty in self.dicts:
            if name in free:
                assert self.function.__closure__ is not None
                cell = self.function.__closure__[free.index(name)]
                yield field, empty, partial(setattr, cell, "cell_contents")
            else:
                yield field, empty, partial(self.function.__globals__.__setitem__, name)


def field_type(analysis: Analysis, name: str, state: Mapping[str, Any]) -> Any:
    """The type of a state dict's field."""
    definition = analysis.definition
    annotation = state[name] if name in state else definition.annotation(name)
    if annotation is None:
        definition.refuse(
            None,
            f"keeps state in {name}, whose type is not known; annotate it where it is made, "
            f"`{name}: dict[str, float] = ...`, or give state={{{name!r}: dict[str, float]}}",
        )
    try:
        kind = definition.meaning(annotation)
    except Exception as error:  # an annotation is user code and may raise anything
        definition.refuse(
            None,
            f"the annotation {annotation!r} of {name} can't be resolved ({error}); give "
            f"state={{{name!r}: ...}}",
        )
    origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin is Counter and len(args) == 1:
        args = (*args, int)
    if not (isinstance(origin, type) and issubclass(origin, Mapping)):
        definition.refuse(None, f"{name} is annotated {annotation!r}, which is no dict")
    if len(args) != 2:
        definition.refuse(
            None, f"{name} is annotated {annotation!r}; say what it holds: dict[str, float]"
        )
    return types.GenericAlias(dict, args)


def field_names(analysis: Analysis) -> dict[str, str]:
    """Dict name to field name: the same, but for names that a field can't have."""
    names: dict[str, str] = {}
    for name in analysis.dicts:
        field = name.strip("_") or "state"
        while hasattr(Operator, field) or field in HOOKS or field in names.values():
            field += "_"
        names[name] = field
    return names


def bind(analysis: Analysis, fields: Mapping[str, str]) -> Bound:
    """The function again, with the same code but over new dicts."""
    function = analysis.definition.function
    empty_dicts = {name: _like(analysis, name, value) for name, value in analysis.dicts.items()}
    used = _names(function.__code__)
    space = {name: value for name, value in function.__globals__.items() if name in used}
    space.update({name: empty for name, empty in empty_dicts.items() if name in space})
    space.update(__builtins__=builtins, __name__=function.__module__)
    cells = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        cells.append(types.CellType(empty_dicts[name]) if name in empty_dicts else cell)
    copy = types.FunctionType(
        function.__code__, space, function.__name__, function.__defaults__, tuple(cells)
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    copy.__module__ = function.__module__
    return Bound(copy, tuple((fields[name], name, empty) for name, empty in empty_dicts.items()))


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*inner)


def _like(analysis: Analysis, name: str, value: dict[Any, Any]) -> dict[Any, Any]:
    """An empty dict of the same kind."""
    if not isinstance(value, defaultdict):
        return type(value)()
    factory = value.default_factory
    if isinstance(factory, type):
        analysis.check_values({factory})
    elif not (factory is None or known_code(factory) or is_constant(factory)):
        analysis.definition.refuse(
            None,
            f"{name} is a defaultdict whose default {factory!r} may depend on something else; use "
            "int, float, list and the like, or a lambda of constants",
        )
    return defaultdict(factory)


_owners: dict[int, tuple[dict[Any, Any], str]] = {}


def claim(analysis: Analysis) -> None:
    """A dict belongs to one function: two operators do not see each other's state."""
    function = analysis.definition.function
    owner = f"{function.__module__}.{function.__qualname__}"
    for name, value in analysis.dicts.items():
        other = _owners.setdefault(id(value), (value, owner))[1]
        if other != owner:
            analysis.definition.refuse(
                None,
                f"keeps state in {name}, as does {other}, which is managed already; two operators "
                "do not see each other's state: make one function of them",
            )
