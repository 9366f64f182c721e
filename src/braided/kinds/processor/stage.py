"""A StatefulProcessor as a stage of a batch's plan."""

from __future__ import annotations

from braided.kinds.processor.task import ProcessorTask
from braided.kinds.routed_stage import RoutedStage

__all__ = ["ProcessorStage"]


class ProcessorStage(RoutedStage):
    """One processor with all that does not change between batches."""

    task = ProcessorTask
