"""One instance of a columnar operator, called for thousands of keys at a time."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from braided.kinds.class_runtime import ClassRuntime
from braided.operator.columns import ColumnOperator, column_codec
from braided.tasks.spec import BatchSpec

__all__ = ["ColumnRuntime"]


class ColumnRuntime(ClassRuntime):
    """Runs the hooks of one class for one task."""

    def __init__(
        self, operator: type[ColumnOperator], batch: BatchSpec, history: tuple[str, ...]
    ) -> None:
        """`history`: the versions that the state's fields had in the checkpoint."""
        super().__init__(operator)
        self.codec = column_codec(operator).at(history)
        self.op.batchTime = _in_utc(batch.batch_time_ms)
        watermark_ms = batch.known_watermark_ms
        if watermark_ms is not None:
            self.op.watermark = _in_utc(watermark_ms)

    def code(self) -> Any:
        """The class that the user wrote."""
        return type(self.op)

    def advice(self, error: BaseException) -> str | None:
        """A sentence on an error whose own message does not say what to do, or None."""
        name = type(self.op).__name__
        missing = re.search(rf"'{re.escape(name)}' object has no attribute '(\w+)'", str(error))
        if not isinstance(error, AttributeError) or missing is None:
            return None
        return (
            f"state is in columns: read it as state[{missing[1]!r}] and return the new column by "
            "its name; an instance keeps nothing"
        )


def _in_utc(ms: int) -> np.datetime64:
    return np.datetime64(ms * 1000, "us")
