"""Operators of the tests on a cluster, in a module that workers can import."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import braided

__all__ = ["INPUT", "OUTPUT", "Sums", "Waits", "expected_sums"]

INPUT = "k long, v long"
OUTPUT = "k long, n long, s long"


class Sums(braided.Operator):
    """Count and sum of a key, with some ballast, so that its state is worth moving."""

    ballast_bytes: braided.Param[int] = 0
    n: int = 0
    s: int = 0
    ballast: bytes = b""

    def onRow(self, row: Any) -> Iterator[tuple[int, int, int]]:
        self.n += 1
        self.s += row.v
        if not self.ballast:
            self.ballast = row.k.to_bytes(8, "big") * (self.ballast_bytes // 8)
        yield row.k, self.n, self.s


class Waits(braided.Operator):
    """Takes its time for every row, and passes it on."""

    wait_s: braided.Param[float] = 0.0
    n: int = 0

    def onRow(self, row: Any) -> Iterator[tuple[int, int]]:
        time.sleep(self.wait_s)
        self.n += 1
        yield row.k, row.v


def expected_sums(rows: list[tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """What the last row of each key says, by a loop."""
    found: dict[int, tuple[int, int]] = {}
    for k, v in rows:
        n, s = found.get(k, (0, 0))
        found[k] = (n + 1, s + v)
    return found
