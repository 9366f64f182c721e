"""Tables for a batch whose rows have been counted: what the controller knows, asked by the batch.

The controller's thread leaves here what a batch showed (`learn`); the thread of the next batch asks
whether to count (`outlook`) and, with the counts, for tables (`choose`). What is decided here is
`control/same_batch.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from braided.control.events import Counted, CountingSwitched
from braided.control.measure.slot_loads import SlotLoads
from braided.control.measure.view import FlowSample, FlowView, OperatorView
from braided.control.policy import BalancePolicy
from braided.control.routing.table import Loads, RoutingTable
from braided.control.same_batch import (
    BatchTable,
    PassLedger,
    PassOutlook,
    batch_work,
    plan_batch,
    saved_by,
)
from braided.control.worth import Prices

__all__ = ["SameBatch"]

_KEPT = 16
"""Batches of which is kept what their pass did, until the controller has seen them."""


@dataclass(frozen=True, eq=False)
class _Known:
    """What the controller knew after its last batch."""

    view: FlowView
    loads: Mapping[str, SlotLoads]
    prices: Prices


class SameBatch:
    """Balances the batches of one query by the rows that they have. `names` are the operators whose
    rows can be counted.
    """

    def __init__(self, mode: str, policy: BalancePolicy, names: frozenset[str]) -> None:
        self._mode = mode
        self._policy = policy
        self._names = names
        self._lock = threading.Lock()
        self._known: _Known | None = None
        self._ledger = PassLedger()
        self._passes: dict[int, Counted] = {}
        self._was_on = False
        self._refusal = self._why_never()

    def _why_never(self) -> str:
        if self._mode == "off":
            return "it is switched off (braided.balance.sameBatch)"
        if not self._names:
            return "no operator has keys that can be counted in its input"
        if not getattr(self._policy, "by_load", False):
            return "the balance policy does not go by loads alone (by_load)"
        return ""

    def leave_out(self, name: str) -> None:
        """An operator whose keys can't be counted after all: Python functions make them."""
        self._names -= {name}
        if not self._names:
            self.refuse("keys are made by Python functions")

    def refuse(self, why: str) -> None:
        """From here on nothing is counted."""
        self._refusal = why

    def outlook(self, batch: int) -> PassOutlook:
        """Whether to count the rows of a batch that begins now."""
        if self._refusal:
            return PassOutlook(False, self._refusal)
        with self._lock:
            if self._known is None:
                return PassOutlook(False, "nothing is known of the rows' cost yet")
            if self._mode == "on":
                return PassOutlook(True, "it is asked for (braided.balance.sameBatch)")
            return self._ledger.outlook(batch)

    def switched(self, batch: int, outlook: PassOutlook) -> CountingSwitched | None:
        """The line for the log, where a batch is the first that is counted, or not any more."""
        if outlook.counts == self._was_on:
            return None
        self._was_on = outlook.counts
        return CountingSwitched(batch, outlook.counts, outlook.why)

    def choose(
        self,
        taken: Mapping[str, RoutingTable],
        before: Mapping[str, RoutingTable],
        counts: Mapping[str, Loads],
    ) -> dict[str, BatchTable]:
        """Tables for the operators whose rows were counted, an epoch on from those before."""
        with self._lock:
            known = self._known
        plans: dict[str, BatchTable] = {}
        for name, rows in counts.items() if known is not None else ():
            assert known is not None
            plan = self._plan(known, name, taken[name], rows)
            if plan is not None:
                table = plan.table.as_next_of(before[name])
                plans[name] = replace(plan, table=table)
        return plans

    def note(self, counted: Counted) -> None:
        """A pass was made; the controller will hear of it when it sees the batch."""
        with self._lock:
            self._passes[counted.batch] = counted
            while len(self._passes) > _KEPT:
                del self._passes[min(self._passes)]

    def show(self, batch: int, outlook: PassOutlook) -> dict[str, Any]:
        """For the progress of a batch."""
        with self._lock:
            counted = self._passes.get(batch)
        shown: dict[str, Any] = {"counted": counted is not None, "why": outlook.why}
        if counted is not None:
            shown["passMs"] = round(counted.pass_s * 1000, 2)
            shown["savedMs"] = round(counted.saved_s * 1000, 2)
            shown["movedSlots"] = counted.moved_slots
        return shown

    def learn(
        self,
        sample: FlowSample,
        view: FlowView,
        loads: Mapping[str, SlotLoads],
        prices: Prices,
    ) -> None:
        """What a batch showed, in the controller's thread: what it knows now, and what a pass has
        saved or would have.
        """
        if self._refusal:
            return
        known = _Known(view, loads, prices)
        with self._lock:
            is_first, self._known = self._known is None, known
            counted = self._passes.pop(view.batch, None)
        rows = {each.name: each.rows for each in sample.operators if each.name in self._names}
        if not any(each.any() for each in rows.values()):
            return  # timers alone: there was nothing to count
        if is_first:
            return  # nobody had a say in its table yet: that it could be better is no surprise
        if counted is not None:
            saved_s = counted.saved_s
        else:
            tables = {each.name: each.table for each in sample.operators}
            plans = {name: self._plan(known, name, tables[name], rows[name]) for name in rows}
            saved_s = saved_by({name: plan for name, plan in plans.items() if plan is not None})
        with self._lock:
            pass_s = None if counted is None else counted.pass_s
            self._ledger = self._ledger.seen(view.batch, saved_s, pass_s)

    def _plan(
        self, known: _Known, name: str, table: RoutingTable, rows: Loads
    ) -> BatchTable | None:
        """What would be best for a batch with these rows; None if nothing is known of them."""
        operator, loads = known.view.operators.get(name), known.loads.get(name)
        work = None if loads is None else batch_work(rows, loads)
        if operator is None or work is None or table.slots.size != operator.load.size:
            return None
        period_s = known.view.period_s
        return plan_batch(
            _operator_with_table(operator, table), work, self._policy, known.prices, period_s
        )


def _operator_with_table(operator: OperatorView, table: RoutingTable) -> OperatorView:
    return replace(operator, table=table, speeds=operator.speeds_of(table.channels))
