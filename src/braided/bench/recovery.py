"""How many batches a query takes after a surge until its rows are as young as before."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["recovery_batches"]

_AS_BEFORE = 1.25
_IN_A_ROW = 3
"""One batch may be quick by chance; one that is late long afterwards is not the surge's doing."""


def recovery_batches(
    batches: Sequence[tuple[float, float]], begun: float, ended: float
) -> int | None:
    """The batches after a surge that had older rows than those before it.

    Each batch is told by when it ended and how old its rows were then. Those are counted that ended
    after the surge and before the first of three in a row that are as before. None if there is no
    batch before the surge to go by, or there are no such three.
    """
    calm = [age for at, age in batches if at < begun]
    if not calm:
        return None
    after = [age <= _AS_BEFORE * max(calm) for at, age in batches if at >= ended]
    for late in range(len(after) - _IN_A_ROW + 1):
        if all(after[late : late + _IN_A_ROW]):
            return late
    return None
