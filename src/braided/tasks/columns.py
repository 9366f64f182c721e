"""The hidden columns of rows on their way to a task: what the route adds and tasks read.

All are `bigint`, but for the keys:

    __braided_o0, o1, ...   the order of rows: age, sequence, then one per operator passed
    __braided_place         slot and key hash in one number, so that one comparison sorts both
    __braided_k0, ...       grouping columns that are expressions
"""

from __future__ import annotations

__all__ = [
    "PLACE",
    "PLACE_SHIFT",
    "TIMER_SEQUENCE",
    "hidden_key",
    "is_place_of",
    "order_columns",
]

PLACE = "__braided_place"
PLACE_SHIFT = 45
"""A place is slot * 2^45 plus 45 bits of the key's hash; 2^18 slots keep it positive."""
TIMER_SEQUENCE = 1 << 62
"""Rows that a timer gives out come after all rows of their batch."""


def order_columns(count: int) -> list[str]:
    """The names of the first `count` order columns."""
    return [f"__braided_o{i}" for i in range(count)]


def hidden_key(number: int) -> str:
    """The name of a grouping column that is an expression."""
    return f"__braided_k{number}"


def is_place_of(place: int, hash: int) -> bool:
    """Whether the bits of a hash that a place has are those of this one."""
    return place & ((1 << PLACE_SHIFT) - 1) == (hash & ((1 << 64) - 1)) >> (64 - PLACE_SHIFT)
