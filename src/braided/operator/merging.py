"""Fields that say how they merge, so that a class needs no `merge` of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from braided.errors import OperatorDefinitionError

__all__ = ["MergeField", "Merged", "merge_fields", "merged"]

T = TypeVar("T")

MergeField = Callable[[Any, Any], Any]
"""What a field becomes, of what it is and what the other one's is."""


@dataclass(frozen=True)
class Merged:
    """A default that says how its field merges."""

    how: MergeField
    default: Any


def merged(how: str | MergeField, *, default: T) -> T:
    """The default of a field that says how two states of it become one.

    count: int = braided.merged("sum", default=0)

    `how` is "sum" (also of lists, one after the other), "min", "max", "union" (of sets, and of
    dicts without a key in common), or a function of two values. None stands for no value yet.
    """
    known = _WAYS.get(how) if isinstance(how, str) else how
    if not callable(known):
        raise OperatorDefinitionError(
            f"merged({how!r}): a field merges by one of {', '.join(map(repr, _WAYS))}, or by a "
            "function of two values"
        )
    return cast("T", Merged(known, default))


def merge_fields(self: Any, other: Any) -> None:
    """The `merge` of a class whose fields all say how they do."""
    for name, how in type(self)._merges.items():
        mine, others = getattr(self, name), getattr(other, name)
        if mine is None or others is None:
            setattr(self, name, others if mine is None else mine)
        else:
            setattr(self, name, how(mine, others))


def _sum(mine: Any, others: Any) -> Any:
    return mine + others


def _union(mine: Any, others: Any) -> Any:
    return mine | others


_WAYS: dict[str, MergeField] = {"sum": _sum, "min": min, "max": max, "union": _union}
