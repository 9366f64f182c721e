"""Spark's own streaming query, for objects that are made before it is started.

The function that Spark calls for every batch exists before the query does, and has to know later
whether the query still runs and what its progress says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["QueryHandle"]


class QueryHandle:
    """A query that is there from `attach` on; before that, it counts as running."""

    def __init__(self) -> None:
        self._query: StreamingQuery | None = None

    def attach(self, query: StreamingQuery) -> None:
        self._query = query

    def is_active(self) -> bool:
        return self._query is None or self._query.isActive

    def last_progress(self) -> Mapping[str, Any] | None:
        return None if self._query is None else self._query.lastProgress
