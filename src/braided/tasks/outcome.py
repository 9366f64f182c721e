"""What all tasks of a batch came to: the value that a manifest is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from braided.control.routing.table import RoutingTable
from braided.store.history.manifest import CarryFile, DeadFile, OperatorMeta, Prepared
from braided.store.history.runs import RunFile
from braided.tasks.first_state import FirstState
from braided.tasks.reports import ChannelReport

__all__ = ["CutAsked", "MergedKeys", "Outcome"]


@dataclass(frozen=True)
class CutAsked:
    """That a batch was to end early while it ran."""

    why: str
    after_s: float
    """How long its tasks had been running."""
    asked_s: float
    """When that was, on the driver's clock that only goes forward."""
    rebalances: bool
    """Whether the rows that are left are to have a better table."""


@dataclass(frozen=True)
class MergedKeys:
    """The state of the split keys of an operator, which its tasks have only parts of."""

    run: RunFile
    """What follows what the tasks wrote."""
    keys_added: int
    bytes_added: int


@dataclass(frozen=True)
class Outcome:
    """What a batch did, before it is made true."""

    batch: int
    batch_time_ms: int
    watermark_ms: int
    metas: Mapping[str, OperatorMeta]
    tables: Mapping[str, RoutingTable]
    reports: Mapping[str, list[ChannelReport]]
    outputs: tuple[Prepared, ...]
    fed_back: list[CarryFile]
    initial: Mapping[str, FirstState]
    """What operators in their first batch started with."""
    behind: Mapping[str, int] = field(default_factory=dict)
    """The late watermark of operators that rows are left behind."""
    carried: Mapping[str, int] = field(default_factory=dict)
    """The watermark when the oldest row was new, of operators that have rows carried."""
    merged: Mapping[str, MergedKeys] = field(default_factory=dict)
    """What became of split keys, by operator."""
    late: Mapping[str, int] = field(default_factory=dict)
    """Rows that were dropped behind the watermark before they reached a task, by operator."""
    diverted: tuple[DeadFile, ...] = ()
    """Files with rows that were late."""
    cut: CutAsked | None = None
    """What was asked while it ran; whether rows are left is another matter."""

    @property
    def rows_left(self) -> int:
        """Rows that tasks took in and did not process."""
        reports = (report for each in self.reports.values() for report in each)
        return sum(report.carry.rows for report in reports if report.carry is not None)
