"""The gate between batches and stop(): a batch that runs may finish, none begins after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Gate", "Stopped"]

# Spark takes a Python error for an interrupt by these words. The error must be short: to look for
# them in a long traceback overflows the JVM's stack.
_WORDS = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling foreachBatch: "
    "java.lang.InterruptedException"
)


class Stopped(RuntimeError):
    """Tells Spark that a batch did not finish because the query is being stopped."""

    def __init__(self) -> None:
        super().__init__(_WORDS)


class Gate:
    """One batch at a time passes; `shut` waits for it."""

    def __init__(self) -> None:
        self._state = threading.Condition()
        self._thread: int | None = None
        self.running: int | None = None
        """The batch that runs."""
        self.stopping = False
        self.parked = False
        """Whether a batch waits here for the query to end."""

    @contextmanager
    def batch(self, number: int, is_active: Callable[[], bool]) -> Iterator[None]:
        with self._state:
            if self.stopping:
                self.parked = True
                # Spark understands the words only once it has begun to stop.
                while is_active():
                    self._state.wait(0.01)
                raise Stopped
            self.running = number
            self._thread = threading.get_ident()
        try:
            yield
        finally:
            with self._state:
                self.running = None
                self._thread = None
                self._state.notify_all()

    def inside(self) -> bool:
        """Whether the caller is the running batch itself, as a user's foreachBatch function is."""
        with self._state:
            return self._thread == threading.get_ident()

    def shut(self, timeout_s: float) -> int | None:
        """No batch begins from here on. The batch that still runs then, or None."""
        with self._state:
            self.stopping = True
            self._state.wait_for(lambda: self.running is None, timeout_s)
            return self.running
