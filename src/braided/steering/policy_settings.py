"""From the options of a query to the policies and settings of its controller.

Nobody's channels change unless an option asks for it. Slots move, and hot keys, where that pays.
What can't be, an operator that is not there or more channels than tasks that run at a time, is
found here, because only here the flow and the cluster are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from braided.control.hot_keys import HotKeyRule
from braided.control.locality.loop import LocalityRule
from braided.control.measure.latency import PERCENTILE
from braided.control.policies.ds2 import Ds2
from braided.control.policies.guarded import Guard, GuardedBalance, GuardedScale
from braided.control.policies.model import Model
from braided.control.policy import BalancePolicy, Bounds, Limits, ScalePolicy
from braided.control.registry import balance_policy, scale_policy
from braided.control.settings import Settings
from braided.control.useful import KeyNames
from braided.control.worth import Prices
from braided.errors import OptionError
from braided.options import Options
from braided.steering.task_waves import warn_of_bound

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
    bound: int
    """The most channels that options let a policy take; 0 where none chooses, or none is said."""


def policies_of(
    options: Options,
    parallelism: int,
    host_cores: int,
    cores: int | None = None,
    *,
    cpus: int | None = None,
    operators: Sequence[str] | None = None,
    key_names: KeyNames | None = None,
) -> Policies:
    """What the options ask for; `parallelism` is how many channels are usual here, and a host
    runs `host_cores` of them at a time, all hosts together `cores`, where that is known. `cpus` is
    how many processors these have, `operators` are those of the flow.
    """
    scale = options.scale
    if scale is None:
        # Who says how few there may be has not asked for a change.
        bounded = options.channels_max is not None or bool(options.operators_max)
        scale = "model" if options.latency_target_s is not None else "ds2" if bounded else "off"
    guard = Guard()
    balance = options.balance
    names = (_name_of(scale), _name_of(balance))
    limits = _limits(options, parallelism, cores, cpus, operators)
    bound = 0
    if names[0] != "off":
        bound = max([options.channels_max or 0, *options.operators_max.values()])
    if limits.cores is not None and bound > limits.cores:
        warn_of_bound(bound, limits.cores)
    settings = Settings(
        scale=GuardedScale(_scale(scale, options), guard, f"scale {names[0]}"),
        balance=GuardedBalance(_balance(balance, options), guard, f"balance {names[1]}"),
        limits=limits,
        scale_dry_run=options.scale_dry_run,
        locality=_locality(options),
        key_names=key_names or Settings().key_names,
        prices=Prices(least_batch_s=_LEAST_BATCH_S),
        hot_keys=_hot_keys(options),
        settle_batches=_SETTLE_BATCHES,
        window_batches=options.window_batches,
        executors=options.executors,
        host_channels=host_cores,
        reshape_every_batches=options.executors_review_batches,
    )
    return Policies(*names, settings, guard, bound)


def _scale(scale: str | ScalePolicy, options: Options) -> ScalePolicy:
    if scale == "model":
        target_s = options.latency_target_s
        plain = Model(catch_up_s=options.scale_catch_up_s, percentile=PERCENTILE)
        return plain if target_s is None else replace(plain, target_s=target_s)
    if scale == "ds2":
        return Ds2(options.scale_utilisation, options.scale_catch_up_s)
    return scale_policy(scale)


def _balance(balance: str | BalancePolicy, options: Options) -> BalancePolicy:
    if balance in ("elasticutor", "rc"):
        return balance_policy(balance, theta=options.balance_threshold)
    return balance_policy(balance)


def _hot_keys(options: Options) -> HotKeyRule:
    """What becomes of hot keys. Who has no slot moved wants no key moved, unless they say so."""
    mode = options.hot_keys or ("off" if options.balance == "static" else "split")
    if mode == "off":
        return replace(HOT_KEYS, pins_max=0)
    return replace(HOT_KEYS, splits=mode == "split")


def _locality(options: Options) -> LocalityRule | None:
    """How locality is pursued; None where it is not. With `auto`, where all is one host, nothing is
    counted, and so nothing decided.
    """
    if options.locality == "off":
        return None
    return LocalityRule(
        period_batches=options.locality_period_batches,
        alpha=options.locality_imbalance,
        zones=options.zones,
        dry_run=options.locality_dry_run,
    )


def _limits(
    options: Options,
    parallelism: int,
    cores: int | None,
    cpus: int | None,
    operators: Sequence[str] | None,
) -> Limits:
    least = options.channels_min or 1
    most = options.channels_max or max(least, parallelism, options.channels)
    fewest, largest = options.operators_min, options.operators_max
    named = {name.lower(): name for name in operators or ()}
    asked = {*fewest, *largest, *(name.lower() for name in options.scale_exclude)}
    unknown = sorted(asked - named.keys())
    if operators is not None and unknown:
        raise OptionError(
            f"braided.operator.<name>.channels.* and braided.scale.exclude name operators of the "
            f"flow; there is no {', '.join(unknown)}, but {', '.join(sorted(named.values()))}"
        )
    return Limits(
        channels_min=least,
        channels_max=most,
        cores=cores,
        cpus=cpus,
        cooldown_s=options.scale_cooldown_s,
        calm_s=options.scale_down_delay_s,
        up_delay_s=options.scale_up_delay_s,
        operators={
            named.get(name, name): Bounds(fewest.get(name), largest.get(name))
            for name in {*fewest, *largest}
        },
        excluded=frozenset(named.get(n.lower(), n) for n in options.scale_exclude),
    )


def _name_of(policy: Any) -> str:
    return policy if isinstance(policy, str) else type(policy).__name__
