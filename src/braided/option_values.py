"""The kinds of values that options take: from what somebody wrote to the value and back.

A text that does not fit is a `ValueError`; `options.py` says of which option, and what would fit.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from braided.control.policy import BalancePolicy, ScalePolicy
from braided.control.registry import balance_policy, policy_names, scale_policy
from braided.store.durable.location import Location

__all__ = [
    "BALANCE",
    "COLUMN",
    "DIRECTORY",
    "FACTOR",
    "FLAG",
    "NAMES",
    "SCALE",
    "SECONDS",
    "SHARE",
    "SIZE",
    "TARGET",
    "THRESHOLD",
    "ZONES",
    "ValueKind",
    "one_of",
    "text_of",
    "whole",
]

_MS_PER_UNIT = {
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_BYTES_PER_UNIT = {
    unit + suffix: 1 << shift
    for unit, shift in {"k": 10, "m": 20, "g": 30, "t": 40, "p": 50}.items()
    for suffix in ("", "b")
} | {"b": 1}


@dataclass(frozen=True)
class ValueKind:
    """A kind of value: how a person is told what it takes, how text becomes it and back."""

    takes: str
    parse: Callable[[Any], Any]  # ValueError when the text does not fit
    show: Callable[[Any], str] = str
    objects: bool = False  # whether it may be something else than text

    def given(self, value: Any) -> Any:
        """A value as it is parsed: as Spark's `option` would pass it on, unless it is an object."""
        if self.objects and not isinstance(value, str):
            return value
        return text_of(value)


def text_of(value: Any) -> str:
    return (str(value).lower() if isinstance(value, bool) else str(value)).strip()


def whole(least: int, most: int | None = None) -> ValueKind:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]+", text):
            raise ValueError
        number = int(text)
        if number < least or (most is not None and number > most):
            raise ValueError
        return number

    span = f"from {least} to {most}" if most is not None else f"of at least {least}"
    return ValueKind(f"a whole number {span}", parse)


def _parse_factor(text: str) -> float:
    number = float(text)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError
    return number


def _parse_flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _parse_size(text: str) -> int:
    match = re.fullmatch(r"([0-9]+)\s*([a-z]*)", text.lower())
    if not match or (match[2] or "b") not in _BYTES_PER_UNIT:
        raise ValueError
    return int(match[1]) * _BYTES_PER_UNIT[match[2] or "b"]


def _parse_seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?)\s*([a-z]*)", text.lower())
    if not match or (match[2] or "s") not in _MS_PER_UNIT:
        raise ValueError
    return float(match[1]) * _MS_PER_UNIT[match[2] or "s"] / 1000


def _parse_column(text: str) -> str:
    if not text:
        raise ValueError
    return text


def one_of(*words: str) -> ValueKind:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError
        return text.lower()

    return ValueKind(f"{', '.join(words[:-1])} or {words[-1]}", parse)


def _parse_scale(given: Any) -> str | ScalePolicy:
    chosen: str | ScalePolicy = _policy(given, scale_policy)
    return chosen


def _parse_balance(given: Any) -> str | BalancePolicy:
    chosen: str | BalancePolicy = _policy(given, balance_policy)
    return chosen


def _policy(given: Any, find: Callable[[Any], Any]) -> Any:
    """The name or the object itself; whether there is such a policy is all that is looked at."""
    try:
        find(given)
    except TypeError as error:  # an object without the method
        raise ValueError from error
    return given


def _parse_positive_seconds(text: str) -> float:
    seconds = _parse_seconds(text)
    if seconds <= 0:
        raise ValueError
    return seconds


def _parse_share(text: str) -> float:
    number = _parse_factor(text)
    if number > 1:
        raise ValueError
    return number


def _parse_threshold(text: str) -> float:
    number = _parse_factor(text)
    if number < 1:
        raise ValueError
    return number


def _parse_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError
    return names


def _parse_zones(text: str) -> dict[str, str]:
    pairs = [pair.split("=") for pair in _parse_names(text)]
    zones = {pair[0].strip(): pair[-1].strip() for pair in pairs}
    if any(len(pair) != 2 for pair in pairs) or not all(zones) or not all(zones.values()):
        raise ValueError
    if len(zones) < len(pairs):
        raise ValueError
    return zones


def _parse_directory(text: str) -> str:
    if not text:
        raise ValueError
    # Absolute, because tasks run in other working directories than the driver's.
    location = Location.of(os.path.expanduser(text))
    if location.local is None:
        raise ValueError
    return location.text


def _show_size(size: int) -> str:
    for unit in "gmk":
        if size and size % _BYTES_PER_UNIT[unit] == 0:
            return f"{size // _BYTES_PER_UNIT[unit]}{unit}"
    return str(size)


FLAG = ValueKind("true or false", _parse_flag, lambda flag: str(flag).lower())
FACTOR = ValueKind("a number above 0", _parse_factor)
SIZE = ValueKind(
    "a size: bytes, or a number with k, m, g or t such as 64m", _parse_size, _show_size
)
SECONDS = ValueKind(
    "a time: seconds, or a number with ms, s, m or h such as 500ms",
    _parse_seconds,
    lambda seconds: f"{seconds:g}s",
)
COLUMN = ValueKind("the name of a column", _parse_column)
ZONES = ValueKind(
    "hosts and their zones, such as h1=a,h2=a,h3=b",
    _parse_zones,
    lambda zones: ",".join(f"{host}={zone}" for host, zone in zones.items()),
)
SCALE = ValueKind(
    f"{', '.join(policy_names()['scale'])}, a registered name, or an object with `scale`",
    _parse_scale,
    objects=True,
)
BALANCE = ValueKind(
    f"{', '.join(policy_names()['balance'])}, a registered name, or an object with `balance`",
    _parse_balance,
    objects=True,
)
TARGET = ValueKind(
    "a time above 0: seconds, or a number with ms, s, m or h", _parse_positive_seconds
)
SHARE = ValueKind("a number above 0 and up to 1", _parse_share)
THRESHOLD = ValueKind("a number of at least 1", _parse_threshold)
NAMES = ValueKind("names with commas between them", _parse_names)
DIRECTORY = ValueKind("the path of a directory on a local disk", _parse_directory)
