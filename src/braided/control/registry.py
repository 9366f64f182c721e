"""Policies by name. Whoever writes one registers it here, or passes the object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from braided.control.policies.balancers import Autoflow, Consistent, Elasticutor, Rc, Static
from braided.control.policies.ds2 import Ds2, Off
from braided.control.policies.model import Model
from braided.control.policies.saso import Saso
from braided.control.policies.saso_paper import SasoPaper
from braided.control.policy import BalancePolicy, ScalePolicy

__all__ = [
    "balance_policy",
    "policy_names",
    "register_balance",
    "register_scale",
    "scale_policy",
]

_P = TypeVar("_P")

_BALANCE: dict[str, Callable[..., BalancePolicy]] = {
    "elasticutor": Elasticutor,
    "autoflow": Autoflow,
    "consistent": Consistent,
    "static": Static,
    "rc": Rc,
}
_SCALE: dict[str, Callable[..., ScalePolicy]] = {
    "saso": Saso,
    "saso-paper": SasoPaper,
    "model": Model,
    "ds2": Ds2,
    "off": Off,
}


def register_balance(name: str, make: Callable[..., BalancePolicy]) -> None:
    """Makes a balance policy known; `make` is called with the settings that are given with it."""
    _register(_BALANCE, name, make)


def register_scale(name: str, make: Callable[..., ScalePolicy]) -> None:
    """Makes a scale policy known."""
    _register(_SCALE, name, make)


def balance_policy(policy: str | BalancePolicy, **settings: Any) -> BalancePolicy:
    """The policy of that name, or the object itself."""
    if isinstance(policy, str):
        return _factory(_BALANCE, policy, "balance")(**settings)
    return _checked(policy, "balance")


def scale_policy(policy: str | ScalePolicy, **settings: Any) -> ScalePolicy:
    """The policy of that name, or the object itself."""
    if isinstance(policy, str):
        return _factory(_SCALE, policy, "scale")(**settings)
    return _checked(policy, "scale")


def policy_names() -> dict[str, tuple[str, ...]]:
    """The names there are, by what the policy decides."""
    return {"balance": tuple(_BALANCE), "scale": tuple(_SCALE)}


def _register(factories: dict[str, Callable[..., _P]], name: str, make: Callable[..., _P]) -> None:
    if name in factories and factories[name] is not make:
        raise ValueError(f"there is a policy {name!r} already; a name means one thing")
    factories[name] = make


def _factory(factories: Mapping[str, Callable[..., _P]], name: str, kind: str) -> Callable[..., _P]:
    if name not in factories:
        raise ValueError(f"there is no {kind} policy {name!r}; there are {', '.join(factories)}")
    return factories[name]


def _checked(policy: _P, method: str) -> _P:
    if not callable(getattr(policy, method, None)):
        raise TypeError(
            f"a {method} policy is a name or an object with a method {method}(); "
            f"{type(policy).__name__} has none"
        )
    return policy
