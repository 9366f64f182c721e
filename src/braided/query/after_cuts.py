"""What a cut takes, by those numbers of a migration that make sense for it.

A cut is the first half of a migration by CCR: the batch is captured, and the next one begins with
what was left. So its times are taken as those of such a migration are (`migrate/metrics.py`), with
every batch after the cut as one that has moved. Nothing is prepared, nobody leaves and nothing is
done again, so that there are no numbers for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from braided.control.events import CutShort
from braided.migrate.metrics import Commit, MigrationTimeline, RecentCommits
from braided.migrate.steps import Strategy
from braided.tasks.outcome import CutAsked, Outcome

__all__ = ["AfterCuts"]


class AfterCuts:
    """The newest cut of a query, until there is nothing more to find out about it."""

    def __init__(self, note: Callable[[CutShort], None]) -> None:
        """`note` writes to the event log."""
        self._note = note
        self._commits = RecentCommits()
        self._cut: CutShort | None = None
        self._timeline: MigrationTimeline | None = None

    def ended(self, outcome: Outcome, now: Commit) -> dict[str, Any]:
        """A batch is published; what the progress should show of one that was cut, and of those
        after it.
        """
        cut = outcome.cut if outcome.rows_left else None
        shown: dict[str, Any] = {}
        if self._timeline is not None:
            self._timeline.batch_ended(now.at_s, True, now.rows_out, outcome.rows_left)
            shown["afterCut"] = _numbers(self._timeline)
            is_caught_up = self._timeline.metrics.catch_up_s is not None
            if cut is not None or (is_caught_up and self._timeline.is_whole):
                self._let_go(outcome.batch)
        if cut is not None:
            shown["cut"] = self._begin(outcome, cut, now)
        self._commits.add(now)
        return shown

    def _begin(self, outcome: Outcome, cut: CutAsked, now: Commit) -> dict[str, Any]:
        before = self._commits.until(cut.asked_s)
        timeline = MigrationTimeline(Strategy.CCR, cut.asked_s, before)
        timeline.paused(cut.asked_s, is_running=True)
        timeline.batch_ended(now.at_s, False, now.rows_out, outcome.rows_left)
        self._timeline = timeline
        self._cut = CutShort(
            outcome.batch, cut.why, cut.after_s, outcome.rows_left, _numbers(timeline)
        )
        self._note(self._cut)
        return {
            "why": cut.why,
            "afterMs": round(cut.after_s * 1000, 2),
            "rowsLeft": outcome.rows_left,
            **_numbers(timeline),
        }

    def _let_go(self, batch: int) -> None:
        """Says what is known by now; the next cut has numbers of its own."""
        assert self._cut is not None and self._timeline is not None
        self._note(
            msgspec.structs.replace(self._cut, batch=batch, metrics=_numbers(self._timeline))
        )
        self._cut = self._timeline = None


def _numbers(timeline: MigrationTimeline) -> dict[str, float | None]:
    metrics = timeline.metrics
    return {
        "drain_s": metrics.drain_s,
        "restore_s": metrics.restore_s,
        "catch_up_s": metrics.catch_up_s,
        "stabilise_s": metrics.stabilise_s,
    }
