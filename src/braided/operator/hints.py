"""The types of annotated fields, also when annotations are strings and classes are local.

With `from __future__ import annotations` an annotation is text, and the names in it may live in
the function that holds the class statement. They are looked up where the class is defined, and
the annotations of nested dataclasses are replaced by what they mean: a class of
`__main__` is rebuilt by cloudpickle in a process whose `__main__` has none of these names.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from braided.errors import OperatorDefinitionError
from braided.operator.params import is_param

__all__ = ["field_hints"]


def field_hints(name: str, space: Mapping[str, Any]) -> dict[str, Any]:
    """Field name to type, for a class whose body gave this namespace; ClassVars left out."""
    module = sys.modules.get(str(space.get("__module__")))
    names = vars(module) if module else {}
    local = _enclosing_names(space)
    hints: dict[str, Any] = {}
    for field, annotation in _annotations(space).items():
        try:
            holder = type("_", (), {"__annotations__": {"_": annotation}})
            hint = typing.get_type_hints(holder, names, local, include_extras=True)["_"]
            if hint is ClassVar or typing.get_origin(hint) is ClassVar:
                continue
            if not is_param(hint):  # which is not stored, and may be of any type
                _resolve_nested(hint, local)
        except Exception as error:  # an annotation is user code and may raise anything
            raise OperatorDefinitionError(
                f"{name}.{field}: the annotation {annotation!r} can't be resolved ({error}); "
                "import or define its names before the class"
            ) from error
        hints[field] = hint
    return hints


def _annotations(space: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations of a class body; from Python 3.14 on it holds a function that makes them."""
    kept = {k: v for k, v in space.items() if k.startswith(("__annotat", "__conditional_annot"))}
    return inspect.get_annotations(type("_", (), kept))


def _enclosing_names(space: Mapping[str, Any]) -> dict[str, Any]:
    """Local names of the functions around the class statement, innermost winning."""
    names: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(1)
    while frame:
        around = f"{frame.f_code.co_qualname}.<locals>."
        same_module = frame.f_globals.get("__name__") == space.get("__module__")
        if same_module and str(space["__qualname__"]).startswith(around):
            for key, value in frame.f_locals.items():
                names.setdefault(key, value)
        frame = frame.f_back
    return names


def _resolve_nested(hint: Any, local: dict[str, Any]) -> None:
    """Replace text by types in the annotations of every class that the hint is made of."""
    seen: set[type] = set()
    pending = list(_classes(hint))
    while pending:
        cls = pending.pop()
        if cls in seen:
            continue
        seen.add(cls)
        annotations = inspect.get_annotations(cls)
        if not annotations:  # Decimal, date and the like, which may be immutable
            continue
        hints = typing.get_type_hints(cls, None, local, include_extras=True)
        annotations = {key: hints[key] for key in annotations}
        cls.__annotations__ = annotations
        for value in annotations.values():
            pending.extend(_classes(value))


def _classes(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from _classes(part)
