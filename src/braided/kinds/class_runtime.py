"""An instance of a user's class in a task: what it opens is closed."""

from __future__ import annotations

from typing import Any

__all__ = ["ClassRuntime"]


class ClassRuntime:
    """The hooks of a class around all the keys of a task."""

    def __init__(self, operator: type[Any]) -> None:
        self.op: Any = operator()  # hooks are the user's, so no type knows them
        self._started = False

    def start(self) -> None:
        """Have `onOpen` called, if there is one and it was not; before the first key."""
        if not self._started:
            if hasattr(self.op, "onOpen"):
                self.op.opened = self.op.onOpen()
            self._started = True

    def stop(self) -> None:
        """Have `onClose` called for what `start` opened."""
        if self._started:
            self._started = False
            if hasattr(self.op, "onClose"):
                self.op.onClose()
