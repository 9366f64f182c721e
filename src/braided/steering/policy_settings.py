"""From the options of a query to the policies and settings of its controller.

Nobody's channels change unless an option asks for it. Slots move, and hot keys, where that pays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from braided.control.hot_keys import HotKeyRule
from braided.control.policies.guarded import Guard, GuardedBalance, GuardedScale
from braided.control.policies.model import Model
from braided.control.policy import Limits
from braided.control.registry import balance_policy, scale_policy
from braided.control.settings import Settings
from braided.control.worth import Prices
from braided.options import Options

__all__ = ["HOT_KEYS", "Policies", "policies_of"]

_SETTLE_BATCHES = 2
"""The first batches of a process start workers and fill caches."""
_LEAST_BATCH_S = 0.05
"""What a plan has to save in a batch: less than this is what a busy machine does to clocks."""
HOT_KEYS = HotKeyRule(company_least=_LEAST_BATCH_S, pins_max=16)
"""No more than this: each pin is a comparison for every row."""


@dataclass(frozen=True)
class Policies:
    """Who decides, in words and as settings of a controller."""

    scale: str
    balance: str
    settings: Settings
    guard: Guard


def policies_of(
    options: Options, parallelism: int, host_cores: int, cores: int | None = None
) -> Policies:
    """What the options ask for; `parallelism` is how many channels are usual here, and a host
    runs `host_cores` of them at a time, all hosts together `cores`, where that is known.
    """
    scale = options.scale
    if scale is None:
        bounded = options.channels_min is not None or options.channels_max is not None
        scale = "model" if options.latency_target_s is not None else "ds2" if bounded else "off"
    guard = Guard()
    balance = options.balance
    names = (_name_of(scale), _name_of(balance))
    if scale == "model" and options.latency_target_s is not None:
        scale = Model(target_s=options.latency_target_s)
    # By name or by default, it is the same one.
    chosen = Settings().balance if balance == "elasticutor" else balance_policy(balance)
    least = options.channels_min or 1
    most = options.channels_max or max(least, parallelism, options.channels)
    settings = Settings(
        scale=GuardedScale(scale_policy(scale), guard, f"scale {names[0]}"),
        balance=GuardedBalance(chosen, guard, f"balance {names[1]}"),
        limits=Limits(channels_min=least, channels_max=most, cores=cores),
        prices=Prices(least_batch_s=_LEAST_BATCH_S),
        hot_keys=HOT_KEYS if balance != "static" else replace(HOT_KEYS, pins_max=0),
        settle_batches=_SETTLE_BATCHES,
        window_batches=options.window_batches,
        executors=options.executors,
        host_channels=host_cores,
        reshape_every_batches=options.executors_review_batches,
    )
    return Policies(*names, settings, guard)


def _name_of(policy: Any) -> str:
    return policy if isinstance(policy, str) else type(policy).__name__
