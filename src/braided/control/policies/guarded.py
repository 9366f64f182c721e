"""Policies under guard: one that raises, or gives back what can't be, harms nobody.

The answers of a policy go into the routing of a running query, so they are checked. A policy that
fails is not asked again for 10 batches, then 20, 40 and so on. Meanwhile all is as it would be
without it: channels stay, slots stay, and where another policy asked for channels, the fewest slots
move.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

from braided.control.events import Failed
from braided.control.measure.view import FlowView, OperatorView
from braided.control.policy import BalancePolicy, Limits, Memory, ScalePolicy, Wish
from braided.control.routing.rescale import rescale
from braided.control.routing.table import RoutingTable

__all__ = ["Guard", "GuardedBalance", "GuardedScale"]

_HOLD_BATCHES = 10
_HOLD_DOUBLINGS = 4


@dataclass
class Guard:
    """What the policies of one query have done wrong, and until when each is held back."""

    batch: int = 0
    failures: list[Failed] = field(default_factory=list)
    _held: dict[str, tuple[int, int]] = field(default_factory=dict)  # until when, how often

    def is_held(self, policy: str) -> bool:
        return self.batch <= self._held.get(policy, (-1, 0))[0]

    def failed(self, policy: str, error: Exception) -> None:
        _, times = self._held.get(policy, (-1, 0))
        until = self.batch + _HOLD_BATCHES * 2 ** min(times, _HOLD_DOUBLINGS)
        self._held[policy] = (until, times + 1)
        message = f"{type(error).__name__}: {error}"
        self.failures.append(Failed(self.batch, policy, message, until))

    def take(self) -> tuple[Failed, ...]:
        """The failures since the last call."""
        failures, self.failures = tuple(self.failures), []
        return failures

    def ask(self, policy: str, answer: Callable[[], Any]) -> Any:
        """What `answer` gives back, or None from a policy that fails or is held back."""
        if self.is_held(policy):
            return None
        try:
            return answer()
        except Exception as error:  # whatever it is, it is not the query's
            self.failed(policy, error)
            return None


@dataclass(frozen=True)
class GuardedScale:
    """A scale policy whose wishes are checked."""

    policy: ScalePolicy
    guard: Guard
    name: str

    @property
    def by_rate(self) -> bool:
        return bool(getattr(self.policy, "by_rate", False))

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        self.guard.batch = flow.batch

        def answer() -> tuple[Mapping[str, Wish], Memory]:
            wishes, memory_after = self.policy.scale(flow, limits, memory)
            checked = {name: _checked_wish(flow, name, wish) for name, wish in wishes.items()}
            if not isinstance(memory_after, dict):
                raise TypeError(f"the memory is a dict, not {type(memory_after).__name__}")
            json.dumps(memory_after)  # or the manifest that holds it could not be written
            return checked, memory_after

        wishes_and_memory: tuple[Mapping[str, Wish], Memory] | None
        wishes_and_memory = self.guard.ask(self.name, answer)
        return ({}, memory) if wishes_and_memory is None else wishes_and_memory


@dataclass(frozen=True)
class GuardedBalance:
    """A balance policy whose tables are checked."""

    policy: BalancePolicy
    guard: Guard
    name: str

    @property
    def weighed(self) -> bool:
        return bool(getattr(self.policy, "weighed", True))

    @property
    def by_load(self) -> bool:
        return bool(getattr(self.policy, "by_load", False))

    def balance(self, operator: OperatorView, channels: int) -> RoutingTable:
        def answer() -> RoutingTable:
            table = self.policy.balance(operator, channels)
            _check_table(operator, channels, table)
            return table

        table: RoutingTable | None = self.guard.ask(self.name, answer)
        return rescale(operator.table, channels, operator.load) if table is None else table


def _checked_wish(flow: FlowView, name: str, wish: Any) -> Wish:
    if name not in flow.operators:
        raise ValueError(f"a wish for {name!r}; there are {', '.join(flow.operators)}")
    if not isinstance(wish, Wish):
        raise TypeError(f"a wish is a Wish, not {type(wish).__name__}")
    channels: Any = wish.channels
    if isinstance(channels, bool) or not isinstance(channels, Integral) or channels < 1:
        raise ValueError(f"a wish for {channels!r} channels")
    return replace(wish, channels=int(channels), reason=str(wish.reason))


def _check_table(operator: OperatorView, channels: int, table: Any) -> None:
    before = operator.table
    if not isinstance(table, RoutingTable):
        raise TypeError(f"a table is a RoutingTable, not {type(table).__name__}")
    if table.slots.size != before.slots.size:
        raise ValueError(f"a table of {table.slots.size} slots for {before.slots.size}")
    if table.channels != channels:
        raise ValueError(f"a table for {table.channels} channels where {channels} were asked for")
    follows = table.epoch == before.epoch + 1 and table.keeps_keys_of(before)
    if table is not before and not follows:
        raise ValueError("a table that is not the next one: make it with operator.table.next(...)")
