"""What the flow has to give out and to keep, by plain Python, and the rows that it is given."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from support.chaos.flow import GROUPS, STEP, TICK_MS, chained, mixed

__all__ = ["KEYS", "ROWS_PER_FILE", "InputRow", "Oracle", "OutputRow", "State", "rows_of_file"]

KEYS = 240
ROWS_PER_FILE = 50
_ROW_MS = 50
_BEGIN_MS = 1_700_000_000_000

OutputRow = tuple[int, str, int]
State = dict[str, dict[int, tuple[Any, ...]]]
"""By operator and key: the fields, and as the last of them the timers."""


class InputRow(NamedTuple):
    id: int
    k: int
    v: int
    at_ms: int


def rows_of_file(seed: int, number: int) -> list[InputRow]:
    """The rows of a file of the source: the same for a seed, whatever else happens."""
    chance = random.Random(f"{seed} {number}")
    first = number * ROWS_PER_FILE
    return [
        InputRow(n, chance.randrange(KEYS), chance.randrange(1000), _BEGIN_MS + n * _ROW_MS)
        for n in range(first, first + ROWS_PER_FILE)
    ]


class Oracle:
    """Has seen some rows, in order."""

    def __init__(self) -> None:
        self.rows = 0
        self.output: Counter[OutputRow] = Counter()
        self._bags: dict[int, tuple[int, int]] = {}
        self._chains: dict[int, tuple[int, int]] = {}
        self._totals: dict[int, tuple[int, int, int, int]] = {}
        self._ticks: dict[int, int] = {}
        """The next tick of every group."""

    def feed(self, rows: Iterable[InputRow]) -> None:
        now_ms = 0
        for row in rows:
            self.rows += 1
            now_ms = max(now_ms, row.at_ms)
            n, sum = self._bags.get(row.k, (0, 0))
            self._bags[row.k] = n + 1, mixed(sum, row.id)
            n, digest = self._chains.get(row.k, (0, 0))
            self._chains[row.k] = n + 1, chained(digest, row.id)
            self._count(row)
        for group, tick in self._ticks.items():
            while tick <= now_ms:
                self.output[group, "tick", tick] += 1
                tick += TICK_MS
            self._ticks[group] = tick

    def _count(self, row: InputRow) -> None:
        group = row.k % GROUPS
        n, total, first, _ = self._totals.get(group, (0, 0, row.at_ms, 0))
        self._totals[group] = n + 1, total + row.v, first, row.at_ms
        self._ticks.setdefault(group, (first // TICK_MS + 1) * TICK_MS)
        if (n + 1) % STEP == 0:
            self.output[group, "rows", n + 1] += 1

    def state(self) -> State:
        return {
            "bag": {k: (*fields, ()) for k, fields in self._bags.items()},
            "chain": {k: (*fields, ()) for k, fields in self._chains.items()},
            "totals": {g: (*fields, ()) for g, fields in self._totals.items()},
            "milestones": {
                g: (n // STEP * STEP, self._ticks[g], (self._ticks[g],))
                for g, (n, *_) in self._totals.items()
            },
        }
