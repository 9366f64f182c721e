"""A columnar operator as a stage of a batch's plan."""

from __future__ import annotations

from braided.kinds.columnar.task import ColumnTask
from braided.kinds.routed_stage import RoutedStage

__all__ = ["ColumnStage"]


class ColumnStage(RoutedStage):
    """One columnar operator with all that does not change between batches."""

    task = ColumnTask
    task_orders_rows = True
