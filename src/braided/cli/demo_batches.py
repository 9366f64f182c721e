"""What the demo sees of its query: the batches that end, what was changed, and how that went."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from braided.api.query import ElasticQuery

__all__ = ["HEAD", "Batch", "BatchFollower", "Change", "summary"]


_LOOKED_AT = 5
"""Batches before and after a change."""


@dataclass(frozen=True)
class Batch:
    """One batch, as its progress shows it."""

    number: int
    rows: int
    ms: float
    done_s: float
    channels: int
    busy_ms: tuple[float, ...]
    """Of each channel of the first operator."""
    keys: int
    moves: int

    @staticmethod
    def of(progress: Any) -> Batch:
        parts = progress["braided"]["operators"]
        ms = float(progress["durationMs"]["triggerExecution"])
        begun = datetime.fromisoformat(progress["timestamp"]).timestamp()
        return Batch(
            number=progress["batchId"],
            rows=parts["matcher"]["rows"],
            ms=ms,
            done_s=begun + ms / 1000,
            channels=parts["matcher"]["channels"],
            busy_ms=tuple(parts["matcher"]["busyMs"]),
            keys=sum(part["keys"] for part in parts.values()),
            moves=sum(part["moves"] for part in parts.values()),
        )

    def line(self) -> str:
        rate = 1000 * self.rows / self.ms
        return (
            f"{self.number:>6}{self.rows:>9,}{rate:>10,.0f}{self.channels:>10}"
            f"{_imbalance([self]):>11.2f}{self.keys:>12,}{self.moves:>7}{self.ms:>10,.0f}"
        )


HEAD = (
    f"{'batch':>6}{'orders':>9}{'orders/s':>10}{'channels':>10}{'imbalance':>11}"
    f"{'state keys':>12}{'moves':>7}{'batch ms':>10}"
)


@dataclass
class BatchFollower:
    """Follows the batches of a query."""

    query: ElasticQuery
    batches: list[Batch] = field(default_factory=list)

    def new(self) -> Iterator[Batch]:
        """The batches that have ended since the last call."""
        last = self.batches[-1].number if self.batches else -1
        for progress in self.query.recentProgress:
            if progress["batchId"] > last and progress["numInputRows"] and "braided" in progress:
                batch = Batch.of(progress)
                last = batch.number
                self.batches.append(batch)
                yield batch


@dataclass(frozen=True)
class Change:
    """Something that was asked of the running query."""

    what: str
    channels: int
    """What the query has once the change is made."""
    after: int
    """The last batch that was known to have ended when it was asked for."""

    def is_made(self, batch: Batch) -> bool:
        """Whether it had taken effect when a batch began."""
        return batch.number > self.after + 1 and batch.channels == self.channels


def summary(batches: Sequence[Batch], changes: Sequence[Change]) -> Iterator[str]:
    """How many orders there were and what each change cost, in lines to read."""
    rows = sum(batch.rows for batch in batches)
    spent_s = batches[-1].done_s - (batches[0].done_s - batches[0].ms / 1000)
    gaps = {later.number: later.done_s - earlier.done_s for earlier, later in pairwise(batches)}
    usual_s = statistics.median(gaps.values())
    yield (
        f"{rows:,} orders in {len(batches)} batches and {spent_s:.0f} s, "
        f"{rows / spent_s:,.0f} a second; output every {usual_s:.2f} s (median)"
    )
    for change in changes:
        # From the batch that was running when it was asked for to the one that it took effect in:
        # on a cluster, where state is brought first, there may be others in between.
        made = next((b.number for b in batches if change.is_made(b)), change.after + 2)
        near = [b for b in batches if change.after < b.number <= made]
        moves = sum(batch.moves for batch in near)
        pause_s = max(0.0, max(gaps[b.number] for b in near) - usual_s)
        before = [b for b in batches if change.after - _LOOKED_AT < b.number <= change.after]
        later = [b for b in batches if made < b.number <= made + _LOOKED_AT]
        effect = ""
        if before and later:
            effect = f", imbalance {_imbalance(before):.2f} -> {_imbalance(later):.2f}"
        yield f"{change.what:<12} moved {moves} slots, pause {pause_s:.2f} s{effect}"


def _imbalance(batches: Sequence[Batch]) -> float:
    """The time of the busiest channel over the average, of all batches together: a channel takes
    milliseconds for one, which says more of the machine than of the channel.
    """
    channels = batches[-1].channels
    same = [batch.busy_ms for batch in batches if batch.channels == channels]
    totals = [sum(times) for times in zip(*same, strict=True)]
    mean = statistics.mean(totals)
    return max(totals) / mean if mean else 1.0
