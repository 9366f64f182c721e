"""An operator that passes rows on, and counts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import braided

__all__ = ["Passes"]


class Passes(braided.Operator):
    seen: int = 0

    def onRow(self, row: Any) -> Iterator[Any]:
        self.seen += 1
        yield row
