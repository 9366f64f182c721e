"""The hidden columns of rows on their way to a task: what the route adds and tasks read.

All are `bigint`, except for the grouping columns:

    __braided_o0, o1, ...   the order of rows: age, sequence (one or two), then one for each place
                            on the way that would lose it: an operator, a union, two inputs, a
                            step that makes several rows of one
    __braided_place         slot and bits of the key's hash in one number, so that one comparison
                            sorts by both; several keys may share one
    __braided_k0, ...       grouping columns that are expressions
"""

from __future__ import annotations

__all__ = [
    "FED_SEQUENCE",
    "FED_SEQUENCES",
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
FED_SEQUENCE = -(1 << 62)
"""Rows that an operator sends back are numbered from here: before all that were taken in with the
batch and left for the next one, and never beside one of them.
"""
FED_SEQUENCES = 1 << 33
"""So many numbers has each place of a flow where rows are sent back; Spark numbers the rows of a
partition with 33 bits.
"""


def order_columns(count: int) -> list[str]:
    """The names of the first `count` order columns."""
    return [f"__braided_o{i}" for i in range(count)]


def hidden_key(number: int) -> str:
    """The name of a grouping column that is an expression."""
    return f"__braided_k{number}"


def is_place_of(place: int, hash: int) -> bool:
    """Whether a key with this hash may have that place: whether the bits in it are the hash's."""
    return place & ((1 << PLACE_SHIFT) - 1) == (hash & ((1 << 64) - 1)) >> (64 - PLACE_SHIFT)
