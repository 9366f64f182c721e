"""What a controller runs with.

The defaults are those of the simulator and of tests: channels follow the load. A query's are made
of its options, and leave its channels alone unless one asks (`steering/policy_settings.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from braided.control.hot_keys import HotKeyRule
from braided.control.locality.loop import LocalityRule
from braided.control.measure.window import LENGTH_BATCHES
from braided.control.policies.balancers import Elasticutor
from braided.control.policies.ds2 import Ds2
from braided.control.policy import BalancePolicy, Limits, ScalePolicy
from braided.control.useful import KeyNames
from braided.control.worth import Prices

__all__ = ["Settings"]


def _hex(operator: str, key: bytes) -> str:
    return key.hex()


def _balance() -> BalancePolicy:
    return Elasticutor()


@dataclass(frozen=True)
class Settings:
    """Policies, limits and prices; windows and intervals are counted in batches."""

    scale: ScalePolicy = field(default_factory=Ds2)
    balance: BalancePolicy = field(default_factory=_balance)
    limits: Limits = field(default_factory=Limits)
    prices: Prices = field(default_factory=Prices)
    hot_keys: HotKeyRule = field(default_factory=HotKeyRule)
    window_batches: int = LENGTH_BATCHES
    settle_batches: int = 0  # with rows, before anything is decided: the first ones are unlike
    scale_every_batches: int = 1
    executors: int = 1  # per operator; with one, all its channels share all its slots
    host_channels: int = 8  # cores of a host: what an executor should not outgrow
    reshape_every_batches: int = 600
    locality: LocalityRule | None = None  # None: nothing is counted or done for it
    scale_dry_run: bool = False  # whether channels are only spoken of
    key_names: KeyNames = _hex
