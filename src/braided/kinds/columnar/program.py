"""A columnar operator as a task needs it: what does not change from batch to batch."""

from __future__ import annotations

from dataclasses import dataclass

from braided.kinds.class_program import ClassProgram

__all__ = ["ColumnProgram"]


@dataclass(frozen=True)
class ColumnProgram(ClassProgram):
    """One columnar operator of a flow, ready to run."""

    @property
    def has_due(self) -> bool:
        """Whether keys have a time at which they are due."""
        return hasattr(self.operator, "onDue")
