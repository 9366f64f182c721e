"""Operators of flows whose keys are assigned to slots."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import braided

__all__ = ["Adds"]


class Adds(braided.Operator):
    """Counts, and says so when its timer fires; starts with what it is given."""

    n: int = 0
    told: int = 0

    def onRow(self, row: Any) -> Iterator[tuple[str, int]]:
        self.n += 1
        self.setTimer(self.batchTime + timedelta(milliseconds=1))
        yield row.k, self.n

    def onTimer(self, fired: Any) -> Iterator[tuple[str, int]]:
        self.told += 1
        return iter(())
