"""Fields that had another name in checkpoints before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, cast

from braided.errors import OperatorDefinitionError

__all__ = ["Renamed", "renamed"]

T = TypeVar("T")


@dataclass(frozen=True)
class Renamed:
    """A default that says which names its field had."""

    earlier: tuple[str, ...]
    default: Any


def renamed(*earlier: str, default: T) -> T:
    """The default of a field that had another name, or other names, in checkpoints before.

    level: float = braided.renamed("stored", default=0.0)
    """
    if not earlier or not all(isinstance(name, str) and name.isidentifier() for name in earlier):
        raise OperatorDefinitionError(
            f"renamed{earlier!r}: it takes the names that the field had, and default=..."
        )
    return cast("T", Renamed(earlier, default))
