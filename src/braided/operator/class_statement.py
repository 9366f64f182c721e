"""What class statements of all kinds of operators have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from braided.errors import OperatorDefinitionError

__all__ = ["FieldsType"]


class FieldsType(type):
    """The type of classes whose annotated fields are state, made by a statement of a user's."""

    _params: dict[str, Any]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], space: dict[str, Any], *, abstract: bool = False
    ) -> Any:
        if not any(isinstance(base, mcs) for base in bases):
            return super().__new__(mcs, name, bases, space)  # the class that users derive from
        if "__qualname__" not in space:
            # No class statement: cloudpickle is rebuilding a class that was checked where it was
            # defined. Fields and methods are set as attributes afterwards.
            return super().__new__(mcs, name, bases, {**space, "__slots__": ()})
        for taken, instead in mcs._reserved().items():
            if taken in space:
                raise OperatorDefinitionError(f"{name} defines {taken}: {instead}")
        return mcs._define(name, bases, space, abstract)

    def __init__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, space)

    @classmethod
    def _reserved(mcs) -> Mapping[str, str]:
        """What a class may not define, and why, or what to do instead."""
        raise NotImplementedError

    @classmethod
    def _define(
        mcs, name: str, bases: tuple[type, ...], space: dict[str, Any], abstract: bool
    ) -> Any:
        """The class of a statement; refused if it can't run."""
        raise NotImplementedError

    def check_params(cls) -> None:
        """Refuses a class that has a parameter without a value."""
        for name in cls._params:
            if not hasattr(cls, name):
                raise OperatorDefinitionError(
                    f"{cls.__name__}.{name} has no value; give it one with "
                    f"{cls.__name__}.with_({name}=...), or a default in the class"
                )
