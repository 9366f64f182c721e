"""A batch's figures in the shape that Spark has for the progress of stateful queries.

What is written for a native query, a dashboard or a `StreamingQueryListener`, finds the same fields
filled: `stateOperators`, the sink's `numOutputRows`, and gauges in Spark's metrics system where
that is asked for. `docs/progress.md` says what each of them is here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from braided.query.outputs import Outputs
from braided.spark.filled_progress import FilledProgress
from braided.spark.query_handle import QueryHandle

__all__ = ["Figures", "figures_of"]

_ATTACH_S = 30.0
"""How long the first batch waits for the call that started the query to return."""

_CUSTOM = {
    "braidedRows": "rows",
    "braidedRowsOut": "rowsOut",
    "braidedKeysTouched": "keysTouched",
    "braidedDeadLetters": "deadLetters",
    "braidedChangelogBytes": "changelogBytes",
    "braidedSnapshotBytes": "snapshotBytes",
    "braidedSlotsOpened": "slotsOpened",
    "braidedCacheHits": "cacheHits",
    "braidedSlotsRebuilt": "rebuilt",
    "braidedSlotsMoved": "moves",
    "braidedWaitedMs": "waitedMs",
}
"""Custom metrics, and what they are called in our section."""

_GAUGES = {
    "rowsTotal": "keys",
    "usedBytes": "stateBytes",
    "rowsUpdated": "rowsUpdated",
    "rowsDroppedByWatermark": "lateRows",
    "rows": "rows",
    "channels": "channels",
    "imbalance": "imbalance",
}


class Figures:
    """Tells Spark the figures of each batch before Spark makes its progress."""

    def __init__(self, filled: FilledProgress, query: QueryHandle, outputs: Outputs) -> None:
        self._filled = filled
        self._query = query
        self._outputs = outputs

    def show(self, batch: int, content: Mapping[str, Any]) -> None:
        query = self._query.awaited(_ATTACH_S)
        if query is not None:
            figures = figures_of(content, self._outputs.rows)
            self._filled.put(query, batch, json.dumps(figures))


def figures_of(content: Mapping[str, Any], rows: Mapping[str, int | None]) -> dict[str, Any]:
    """What Spark's progress is filled with: of our section, and the rows that sinks got."""
    counted = [count for count in rows.values() if count is not None]
    return {
        "section": json.dumps(content),
        "sink": ", ".join(rows),
        "numOutputRows": sum(counted) if len(counted) == len(rows) else -1,
        "sinkMetrics": {
            f"numOutputRows {sink}": str(count)
            for sink, count in rows.items()
            if count is not None and len(rows) > 1
        },
        "stateOperators": [
            _state_operator(name, operator) for name, operator in content["operators"].items()
        ],
        "gauges": {
            f"{name}-{gauge}": operator[field]
            for name, operator in content["operators"].items()
            for gauge, field in _GAUGES.items()
        },
    }


def _state_operator(name: str, operator: Mapping[str, Any]) -> dict[str, Any]:
    busy_ms = operator["busyMs"]
    custom = {metric: int(operator[field]) for metric, field in _CUSTOM.items()}
    return {
        "operatorName": name,
        "numRowsTotal": operator["keys"],
        "numRowsUpdated": operator["rowsUpdated"],
        "allUpdatesTimeMs": round(max(0.0, sum(busy_ms) - operator["commitMs"])),
        "numRowsRemoved": operator["rowsRemoved"],
        "allRemovalsTimeMs": 0,
        "commitTimeMs": round(operator["commitMs"]),
        "memoryUsedBytes": operator["stateBytes"],
        "numRowsDroppedByWatermark": operator["lateRows"],
        "numShufflePartitions": operator["channels"],
        "numStateStoreInstances": operator["slots"],
        "customMetrics": {**custom, "braidedBusiestChannelMs": round(max(busy_ms, default=0.0))},
    }
