"""What a migration took, by the seven numbers of Shukla and Simmhan, section 4, on micro-batches.

All times are seconds since the migration was asked for, or durations; None where a number does not
apply to a strategy, or is not known yet.

    restore_s      until the first output of a batch that ran on the new executors
    drain_s        from the pause to the commit of the batch that was in flight: drained or captured
    rebalance_s    from there, or from the request, to the first batch that begins on the new
                   executors; none where the batch in flight at the kill has moved by itself
    catch_up_s     until all rows are processed that had been taken in when it was asked for; not
                   for DCR, which has none by then
    recovery_s     until the batch that was in flight at the kill is committed, what was done again
                   included: 0 if none was; for DSM only, the others repeat nothing
    stabilise_s    until the beginning of the first minute from restore_s on in which output comes
                   at the rate from before, give or take 20 %
    rows_lost, rows_repeated      of the output, which is committed with the state: none
    rows_redone    rows that tasks took in again because executors were killed
    prepare_s      what the paper takes for granted: until the new executors are there, with workers
                   and state; batches go on meanwhile
    pause_s        from the last output before the move to the first one after it
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from braided.migrate.steps import Strategy

__all__ = ["Commit", "Metrics", "MigrationTimeline", "RecentCommits", "stable_since"]

_STABLE_S = 60.0
_TOLERANCE = 0.2
_PATIENCE_S = 600.0
"""After this long, output is not waited for to become stable."""
_COMMITS_KEPT = 512
_RATE_S = 60.0
"""The rate of output before something is that of so many seconds."""


@dataclass(frozen=True)
class Commit:
    """A batch that was committed and published: when, and how many rows it gave out."""

    at_s: float
    rows_out: int


class RecentCommits:
    """The newest batches of a query, for the rate of its output."""

    def __init__(self) -> None:
        self._commits: deque[Commit] = deque(maxlen=_COMMITS_KEPT)

    def add(self, commit: Commit) -> None:
        self._commits.append(commit)

    def until(self, at_s: float) -> list[Commit]:
        """Those of the last minute before something."""
        return [each for each in self._commits if at_s - _RATE_S <= each.at_s <= at_s]


@dataclass(frozen=True)
class Metrics:
    """See the head of this module."""

    strategy: str
    restore_s: float | None = None
    drain_s: float | None = None
    rebalance_s: float | None = None
    catch_up_s: float | None = None
    recovery_s: float | None = None
    stabilise_s: float | None = None
    rows_lost: int = 0
    rows_repeated: int = 0
    rows_redone: int = 0
    prepare_s: float | None = None
    pause_s: float | None = None


class MigrationTimeline:
    """When what happened in a migration, and the numbers that follow from it."""

    def __init__(self, strategy: Strategy, asked_s: float, before: Sequence[Commit]) -> None:
        """`before`: the newest batches when it was asked for."""
        self._strategy = strategy
        self._asked_s = asked_s
        self._rate = _rate(before)
        self._last_output_s = before[-1].at_s if before else asked_s
        self._commits: list[Commit] = []
        self._prepared_s: float | None = None
        self._paused_s: float | None = None
        self._ended_s: float | None = None
        self._begun_s: float | None = None
        self._is_hit = False
        """Whether a batch was in flight at the kill, and is not committed yet."""
        self._metrics = Metrics(strategy.value)

    @property
    def metrics(self) -> Metrics:
        return self._metrics

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to be found out, or nothing more will be."""
        last_s = self._commits[-1].at_s if self._commits else self._asked_s
        gives_up = not self._rate or last_s - self._asked_s > _PATIENCE_S
        return self._metrics.stabilise_s is not None or gives_up

    def prepared(self, at_s: float) -> None:
        self._prepared_s = at_s
        self._set(prepare_s=at_s - self._asked_s)

    def paused(self, at_s: float, is_running: bool) -> None:
        self._paused_s = at_s
        if not is_running:
            self._ended_s = at_s
            self._set(drain_s=0.0)

    def killed(self, at_s: float, is_running: bool) -> None:
        """Executors go, and with them what they were doing, if that is the strategy."""
        is_first = self._metrics.restore_s is None and self._metrics.recovery_s is None
        if self._strategy is Strategy.DSM and is_first:
            self._is_hit = is_running
            if not is_running:
                self._set(recovery_s=0.0)

    def batch_began(self, at_s: float, confined: bool) -> None:
        has_moved = self._begun_s is not None or self._metrics.restore_s is not None
        if not confined or has_moved:
            return
        self._begun_s = at_s
        since_s = self._ended_s if self._ended_s is not None else self._asked_s
        self._set(rebalance_s=at_s - since_s)

    def batch_ended(
        self, at_s: float, confined: bool, rows_out: int, rows_left: int, rows_redone: int = 0
    ) -> None:
        """A batch is published; `rows_left` is what it carries, `rows_redone` what was done again
        for it.
        """
        self._commits.append(Commit(at_s, rows_out))
        since_s, metrics = at_s - self._asked_s, self._metrics
        if rows_redone:
            self._set(rows_redone=metrics.rows_redone + rows_redone)
        if self._paused_s is not None and self._ended_s is None:
            self._ended_s = at_s
            self._set(drain_s=at_s - self._paused_s)
        if self._is_hit:
            self._is_hit = False
            self._set(recovery_s=since_s)
        if not confined and metrics.restore_s is None and rows_out:
            self._last_output_s = at_s  # a batch that was captured early gives out nothing
        if confined and metrics.restore_s is None:
            self._set(restore_s=since_s, pause_s=at_s - self._last_output_s)
            # Output is steady, too, while new executors are waited for; that is not meant.
            del self._commits[:-1]
        if (
            self._strategy is not Strategy.DCR
            and self._metrics.restore_s is not None
            and metrics.catch_up_s is None
            and not rows_left
        ):
            self._set(catch_up_s=since_s)
        if self._metrics.restore_s is not None and self._rate and metrics.stabilise_s is None:
            stable_s, tried = stable_since(self._commits, self._rate)
            del self._commits[:tried]
            if stable_s is not None:
                self._set(stabilise_s=stable_s - self._asked_s)

    def _set(self, **known: float | int) -> None:
        self._metrics = replace(self._metrics, **known)  # type: ignore[arg-type]


def stable_since(
    commits: Sequence[Commit],
    rate: float,
    span_s: float = _STABLE_S,
    tolerance: float = _TOLERANCE,
) -> tuple[float | None, int]:
    """From when on output came at a rate for as long as `span_s`, None if it has not yet; and how
    many of the first commits it can't be, whatever comes.

    Batches give out at once what came in over a while, so the rate is that of a whole span: from
    the commit that it begins with, which is not counted, to the first one after it.
    """
    last = 0
    for first, begin in enumerate(commits):
        while last < len(commits) and commits[last].at_s < begin.at_s + span_s:
            last += 1
        if last == len(commits):
            return None, first
        if abs(_rate(commits[first : last + 1]) - rate) <= tolerance * rate:
            return begin.at_s, first
    return None, len(commits)


def _rate(commits: Sequence[Commit]) -> float:
    """Rows a second, from the first commit to the last."""
    if len(commits) < 2 or commits[-1].at_s <= commits[0].at_s:
        return 0.0
    rows = sum(commit.rows_out for commit in commits[1:])
    return rows / (commits[-1].at_s - commits[0].at_s)
