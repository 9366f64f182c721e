"""The tick: a streaming source without rows that makes Spark run a batch.

Spark calls `foreachBatch` only when a source has news. Carried rows, due timers and commands
must not wait for that, so every flow's input is united with this source, one of Spark's own that
lives in the driver. Its offset counts how often the *bell* rang: at once, or when a timer is due.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braided.spark.jvm import Jvm

__all__ = ["Bell", "with_tick"]


_LOOK_S = 60.0
"""How long a timer sleeps at most: clocks are set, and machines sleep themselves."""


class Bell:
    """Asks for a batch without input; `at` is where its source was left, -1 at first."""

    def __init__(self, at: int = -1) -> None:
        self._lock = threading.Lock()
        self._at = at
        self._move: Callable[[int], None] | None = None
        self._due_ms: int | None = None
        self._timer: threading.Timer | None = None
        self._closed = False
        self.source = ""
        """What Spark calls the source, once it hangs."""

    def hang(self, move: Callable[[int], None]) -> None:
        """From here on it can be heard: `move` takes the source to an offset."""
        with self._lock:
            self._move = move
            move(self._at)

    def ring(self) -> None:
        """Asks for a batch as soon as Spark looks."""
        with self._lock:
            self._go_to(self._at + 1)

    def answer(self, taken: int) -> None:
        """A batch has begun, up to that offset: whatever rang so far is being seen to."""
        with self._lock:
            self._set_timer(None)
            self._go_to(taken)

    def set_due(self, due_ms: int | None) -> None:
        """Asks for a batch at a point in time; at once, if that has passed."""
        with self._lock:
            if due_ms != self._due_ms:
                self._set_timer(due_ms)

    def close(self) -> None:
        with self._lock:
            self._set_timer(None)
            self._move = None
            self._closed = True

    def _go_to(self, offset: int) -> None:
        if offset != self._at:
            self._at = offset
            if self._move is not None:
                self._move(offset)

    def _set_timer(self, due_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms, self._timer = due_ms, None
        if due_ms is None or self._closed:
            return
        wait_s = due_ms / 1000 - time.time()
        if wait_s <= 0:
            self._go_to(self._at + 1)
        else:
            self._timer = threading.Timer(min(wait_s, _LOOK_S), self._look, [due_ms])
            self._timer.daemon = True
            self._timer.start()

    def _look(self, due_ms: int) -> None:
        with self._lock:
            if self._due_ms == due_ms:  # or it was answered, or set anew, just now
                with contextlib.suppress(Py4JError, OSError):  # Spark is gone, with its query
                    self._set_timer(due_ms)


def with_tick(source: DataFrame, bell: Bell) -> DataFrame:
    """The source, and a batch whenever the bell rings."""
    spark = source.sparkSession
    empty, move, bell.source = Jvm(spark).tick()
    bell.hang(move)
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in source.schema.fields]
    # By position: both sides have the same columns, and names may repeat.
    return source.union(DataFrame(empty, spark).select(nothing))
