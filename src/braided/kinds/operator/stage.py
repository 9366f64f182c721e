"""An Operator as a stage of a batch's plan."""

from __future__ import annotations

from braided.kinds.operator.task import OperatorTask
from braided.kinds.routed_stage import RoutedStage

__all__ = ["OperatorStage"]


class OperatorStage(RoutedStage):
    """One operator with all that does not change between batches."""

    task = OperatorTask
