"""Balance in the same batch: whether to count the rows of a batch by slot before they are routed,
and by which table a batch then runs whose rows are known.

A decision after a batch is one batch late: whoever flips the hot set with every batch is always
ahead of it. A *pass* over the keys of the rows that have arrived, in the JVM, tells how many rows
each slot will have. Times what a row of the slot costs, that is the work of this batch, and the
balance policy makes a table for it. The table is taken if moving slots costs less than the busiest
channel saves in this one batch.

The pass takes time in every batch, and saves time only where keys change faster than batches end.
What it would have saved is known after every batch, whether there was one or not: the reports have
the same counts. What it takes is known from those that were made. So a `PassLedger` keeps both, and
says when a pass is worth its time. Where only its price speaks against it, it is tried again
rarely, because prices are known from no other source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from braided.control.measure.slot_loads import SlotLoads
from braided.control.measure.view import OperatorView
from braided.control.policy import BalancePolicy
from braided.control.routing.table import Loads, RoutingTable, moves
from braided.control.worth import Prices, weigh

__all__ = [
    "BatchTable",
    "PassLedger",
    "PassOutlook",
    "batch_work",
    "plan_batch",
    "saved_by",
]

_LEAST_S = 0.02
"""What a table has to save, and a pass: rows are counted and not timed, so this is little, but more
than a new table costs the driver."""
_ASSUMED_S = 0.1
"""What a pass is taken to cost before that is known. The first ones cost more than that: who has
less to gain is better off without having tried."""
_LENGTH_BATCHES = 16.0
"""How many batches the expected saving looks back on: keys may change with every tenth."""
_COSTS = 5
"""So many of the last passes say what one takes."""
_COLD_PASSES = 2
"""The first ones of a process compile their code, and are not held against it."""
_FIRST_PASSES = 5
"""So many are made before their price is judged."""
_START = 1.1
"""A pass has to save so many times what it takes to be made again, when it was not."""
_GO_ON = 0.9
"""The same where it was: a pass that just pays does not come and go."""
_TRY_AGAIN_BATCHES = 30
_TRY_AGAIN_DOUBLINGS = 4


def batch_work(rows: Loads, loads: SlotLoads) -> Loads | None:
    """The seconds that slots take in a batch in which they have so many rows; None if no row has
    been timed yet.
    """
    if not loads.cost_s.any():
        return None
    return rows * loads.cost_s + loads.rowless_s * float(rows.sum())


@dataclass(frozen=True, eq=False)
class BatchTable:
    """A table for one batch, and what it brings there."""

    table: RoutingTable
    saved_s: float = 0.0
    """Of the busiest channel's time, less what moving takes, and rows that leave their host for it;
    0 where the table stays.
    """
    moved_slots: int = 0


def plan_batch(
    operator: OperatorView,
    work: Loads,
    policy: BalancePolicy,
    prices: Prices,
    period_s: float = 1.0,
) -> BatchTable:
    """The table for a batch whose slots take so many seconds each; that of `operator` itself where
    none is so much better that it pays in this batch. `period_s` is the time from one batch to the
    next.
    """
    before, layout = operator.table, operator.layout
    stays = BatchTable(before)
    if layout is not None and (
        layout.total != before.channels or not layout.is_within(before.slots).all()
    ):
        return stays  # its executors are about to be put in order
    # Work is that of the batch, and so is what rows cost that leave their host.
    anchor = None if operator.anchor is None else operator.anchor * period_s
    counted = replace(operator, load=work, anchor=anchor)
    table = policy.balance(counted, before.channels)
    moved = int(moves(before, table).size)
    if not moved:
        return stays
    # All that it may bring, it has to bring in this batch: the next one is counted anew.
    in_batch = replace(prices, horizon_s=1.0, least_batch_s=_LEAST_S)
    worth = weigh(counted, table, in_batch)
    if not (worth.pays or not getattr(policy, "weighed", True)):
        return stays
    return BatchTable(table, max(0.0, worth.net_s), moved)


@dataclass(frozen=True)
class PassOutlook:
    """Whether the next batch should be counted, and why."""

    counts: bool
    why: str


@dataclass(frozen=True)
class PassLedger:
    """What passes save and take, batch by batch: a value."""

    saved_s: float = 0.0
    """Of all batches in the window, the newest counting most."""
    batches: float = 0.0
    costs_s: tuple[float, ...] = ()
    passes: int = 0
    """In this process."""
    counts: bool = False
    """Whether the last batch was counted."""
    try_at: int = 0
    """The batch from which on the price may be looked at again."""
    tries: int = 0

    @property
    def expected_s(self) -> float:
        """What a pass is expected to save in a batch."""
        return self.saved_s / self.batches if self.batches else 0.0

    @property
    def cost_s(self) -> float:
        """What a pass takes, as far as that is known."""
        return median(self.costs_s) if self.passes >= _FIRST_PASSES else _ASSUMED_S

    def outlook(self, batch: int) -> PassOutlook:
        """Whether to count the rows of a batch."""
        expected_s, cost_s = self.expected_s, self.cost_s
        if expected_s < _LEAST_S:
            return PassOutlook(False, f"it would save {expected_s:.3f} s a batch")
        words = f"save {expected_s:.3f} s a batch and takes {cost_s:.3f} s"
        if expected_s >= (_GO_ON if self.counts else _START) * cost_s:
            return PassOutlook(True, f"it will {words}")
        if self.passes < _FIRST_PASSES:
            return PassOutlook(False, f"it would {words} as a rule")
        if batch >= self.try_at:
            return PassOutlook(True, f"it would {words}: one to see whether that still holds")
        return PassOutlook(False, f"it would {words}; tried again at batch {self.try_at}")

    def seen(self, batch: int, saved_s: float, pass_s: float | None) -> PassLedger:
        """A batch with rows is over: what its pass saved, or would have saved, and how long it
        took; None where there was none.
        """
        keep = 1.0 - 1.0 / _LENGTH_BATCHES
        after = replace(
            self,
            saved_s=keep * self.saved_s + max(0.0, saved_s),
            batches=keep * self.batches + 1.0,
            counts=pass_s is not None,
        )
        if pass_s is None:
            return after
        after = replace(after, passes=self.passes + 1)
        if after.passes <= _COLD_PASSES:
            return after
        # A pass that was made to see what it takes now says it alone: older ones kept it away.
        is_trial = self.passes >= _FIRST_PASSES and not self.counts
        costs_s = (pass_s,) if is_trial else (*self.costs_s, pass_s)[-_COSTS:]
        after = replace(after, costs_s=costs_s)
        if after.passes < _FIRST_PASSES or after.expected_s >= _GO_ON * after.cost_s:
            return replace(after, tries=0)
        wait = _TRY_AGAIN_BATCHES * 2 ** min(self.tries, _TRY_AGAIN_DOUBLINGS)
        return replace(after, try_at=batch + wait, tries=self.tries + 1)


def saved_by(plans: Mapping[str, BatchTable]) -> float:
    """What the tables of a batch save: its operators work one after the other, or share cores."""
    return sum(plan.saved_s for plan in plans.values())
