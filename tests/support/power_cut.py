"""A power cut in the middle of something, as far as one process can have one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from braided import failpoints

__all__ = ["cut_at"]


@contextmanager
def cut_at(patch: pytest.MonkeyPatch, point: str, nth: int = 1) -> Iterator[None]:
    """A power cut, as far as one process can have one: whoever comes to a fail point for the
    n-th time gets no further.
    """
    times = itertools.count(1)

    def reach(name: str) -> None:
        if name == point and next(times) == nth:
            raise RuntimeError(f"power cut at {point}")

    with patch.context() as context:
        context.setattr(failpoints, "reach", reach)
        yield
