"""Parameters of operators: what is the same for every key, and not state.

    class Threshold(braided.Operator):
        limit: braided.Param[float] = 5.0
        stored: float = 0.0

    Threshold.with_(limit=10.0)

A parameter is an attribute of the class. It travels to the workers with it and is never stored, so
that another value at the next start continues the same state.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Container, Mapping
from typing import Annotated, Any, TypeVar

import msgspec.inspect as mi

from braided.errors import OperatorDefinitionError
from braided.store.records.field_types import misfit, refusal, type_text

__all__ = ["Param", "check_name", "check_param", "is_param", "param_type", "params_of"]

T = TypeVar("T")


class _Marker:
    """What tells the annotation of a parameter from that of a state field."""

    def __repr__(self) -> str:
        return "parameter"

    def __reduce__(self) -> str:
        return "_PARAM"  # there is one, in every process


_PARAM = _Marker()
Param = Annotated[T, _PARAM]


def is_param(hint: Any) -> bool:
    return typing.get_origin(hint) is Annotated and _PARAM in hint.__metadata__


def param_type(hint: Any) -> Any:
    """The type that values of a parameter have."""
    return hint.__origin__


def check_param(operator: str, name: str, params: Mapping[str, Any], value: Any) -> None:
    """Refuses a value that a parameter can't have, or a parameter that is not there."""
    if name not in params:
        names = ", ".join(params) or "none; declare it as `name: braided.Param[type] = value`"
        raise OperatorDefinitionError(
            f"{operator} has no parameter {name!r}; its parameters are: {names}"
        )
    if not _fits(params[name], value):
        raise OperatorDefinitionError(
            f"{operator}.{name} is a parameter of type {type_text(params[name])}, and "
            f"{value!r:.80} is a {type(value).__name__}"
        )


def params_of(
    name: str,
    bases: tuple[type, ...],
    space: dict[str, Any],
    hints: dict[str, Any],
    own_names: Container[str],
) -> dict[str, Any]:
    """The parameters of a class by name, with their types; values are attributes of the class.

    `own_names` are not to be had.
    """
    params: dict[str, Any] = {}
    for base in bases:
        params = {**getattr(base, "_params", {}), **params}
    declared = {attribute: param_type(hint) for attribute, hint in hints.items() if is_param(hint)}
    params.update(declared)
    for attribute in declared:
        check_name(name, attribute, own_names)
        if any(attribute == field.name for base in bases for field in getattr(base, "_fields", ())):
            raise OperatorDefinitionError(
                f"{name}.{attribute} is a parameter here and state in a base class; rename one"
            )
    for attribute in params.keys() & hints.keys() - declared.keys():
        raise OperatorDefinitionError(
            f"{name}.{attribute} is a field of the state here and a parameter in a base class; "
            "rename one"
        )
    for attribute in params.keys() & space.keys():
        check_param(name, attribute, params, space[attribute])
    return params


def check_name(name: str, attribute: str, own_names: Container[str]) -> None:
    """Refuses the name of a field or parameter that a class has from us."""
    if attribute in own_names:
        raise OperatorDefinitionError(
            f"{name}.{attribute}: this name is Operator's own; choose another"
        )


def _fits(hint: Any, value: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(part, value) for part in typing.get_args(hint))
    try:
        info = mi.type_info(hint)
    except Exception:  # msgspec raises what a user's type raises; its class must do
        info = mi.AnyType()
    if refusal(info) is None:
        # Nothing is stored here, so a Counter is a fine dict.
        for plain in (dict, list, set):
            if isinstance(value, plain):
                value = plain(value)
        return misfit(info, value) is None
    kind = origin or hint
    if not isinstance(kind, type):
        return True
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that can't be asked
        return True
