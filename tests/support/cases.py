"""How many cases Hypothesis draws where a test says so itself."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["cases"]

_USUAL = 100


def cases(number: int) -> int:
    """So many cases in `make test`; in `make quick` fewer and in `make fuzz` more, in proportion to
    the usual hundred.
    """
    return number * settings.default.max_examples // _USUAL
