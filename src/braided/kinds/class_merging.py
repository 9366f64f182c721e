"""What goes wrong while the shares of a split key are merged, said as users know it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import Row

from braided.errors import BraidedError, StateValueError
from braided.tasks.failure import operator_failure

__all__ = ["explained"]


@contextmanager
def explained(
    operator: str,
    key: Row,
    parts: int,
    batch: int,
    advice: Callable[[BaseException], str | None],
    prefix: str = "",
) -> Iterator[None]:
    """While so many parts of a key are merged: what is raised says of which key and batch. The
    `prefix` says of which operator, where an error about a value does not.
    """
    try:
        yield
    except StateValueError as error:
        where = f"key {key!r} after merge, batch {batch}, which is not committed"
        raise StateValueError(f"{prefix}{error} ({where})") from None
    except BraidedError:
        raise
    except Exception as error:
        what = f"merge of {parts} shares"
        raise operator_failure(error, operator, key, what, batch, advice(error)) from None
