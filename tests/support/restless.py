"""Policies that know no rest: after every batch other channels, slots dealt out anew, and keys
pinned and let go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from braided.control.hot_keys import HotKeyRule
from braided.control.judging import Expectation, Verdict
from braided.control.measure.view import FlowView, OperatorView
from braided.control.operator_loop import OperatorLoop
from braided.control.policy import Limits, Memory, Wish
from braided.control.routing.table import RoutingTable

__all__ = [
    "RESTLESS_KEYS",
    "WITHOUT_CORES",
    "RestlessBalance",
    "RestlessScale",
    "as_many_as_wished",
    "never_in_vain",
]

WITHOUT_CORES = property(lambda limits: limits.channels_max)
"""In place of `Limits.most`: channels as if there were cores for all of them."""


def as_many_as_wished(loop: OperatorLoop, *_: object) -> None:
    """In place of `OperatorLoop.useful`: nothing bounds channels by what helps."""


def never_in_vain(expectation: Expectation, operator: OperatorView) -> Verdict:
    """In place of `judge`: nothing is held back, which by the clock some of all this would be."""
    return Verdict("unclear", None)


RESTLESS_KEYS = HotKeyRule(
    pin_share=0.4,
    unpin_share=0.399,
    company_share=-1e9,  # also a key that is alone
    company_least=-1e9,
    cool_batches=1,
    pins_max=4,
)


@dataclass(frozen=True)
class RestlessScale:
    """Never twice the same number of channels in a row."""

    seed: int
    every: int = 1
    """With how many batches it asks for others: between them channels keep their hosts, without
    which the rows of a batch are not counted on a cluster."""

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        turn = memory.get("turn", 0) + 1
        if turn % self.every:
            return {}, {"turn": turn}
        chance = np.random.default_rng((self.seed, turn))
        wishes = {}
        for name, operator in flow.operators.items():
            others = [n for n in range(1, limits.channels_max + 1) if n != operator.channels]
            wishes[name] = Wish(int(chance.choice(others)), "no rest", at_once=True)
        return wishes, {"turn": turn}


@dataclass(frozen=True)
class RestlessBalance:
    """Every slot anywhere."""

    seed: int
    weighed = False
    by_load = True  # and not by what it has seen: also a batch that was counted is dealt out anew

    def balance(self, operator: OperatorView, channels: int) -> RoutingTable:
        chance = np.random.default_rng((self.seed, operator.table.epoch))
        slots = chance.integers(0, channels, operator.table.slots.size)
        return operator.table.next(slots, channels)
