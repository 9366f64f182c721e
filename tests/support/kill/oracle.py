"""What `Totals` should have made of the input: plain Python, nothing of Braided's."""

from __future__ import annotations

import random
from typing import NamedTuple

from support.kill.operators import FORGET_AT

__all__ = ["InputRow", "TotalsRow", "random_batches", "totals"]


class InputRow(NamedTuple):
    id: int
    key: str
    amount: int


class TotalsRow(NamedTuple):
    id: int
    key: str
    count: int
    total: int


def random_batches(batches: int, rows: int = 60, keys: int = 15) -> list[list[InputRow]]:
    draw = random.Random(7)
    return [
        [
            InputRow(batch * rows + n, f"key {draw.randrange(keys)}", draw.randrange(1000))
            for n in range(rows)
        ]
        for batch in range(batches)
    ]


def totals(batches: list[list[InputRow]]) -> tuple[list[TotalsRow], dict[str, tuple[int, int]]]:
    """The output rows, and (count, total) of every key that has state in the end."""
    state: dict[str, tuple[int, int]] = {}
    out = []
    for batch in batches:
        for row in batch:
            count, total = state.pop(row.key, (0, 0))
            count, total = count + 1, total + row.amount
            out.append(TotalsRow(row.id, row.key, count, total))
            if count < FORGET_AT:
                state[row.key] = (count, total)
    return out, state
