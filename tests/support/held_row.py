"""A row that a worker is processing until the test says so."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HeldRow"]

_HELD_S_MAX = 180.0


@dataclass(frozen=True)
class HeldRow:
    """What a test does while a batch runs is done while a row of it is held, so that it does not
    matter how fast the test is. Operators call `hold`: the first row that comes is held, others
    pass.
    """

    directory: Path

    @property
    def _come(self) -> Path:
        return self.directory / "come"

    @property
    def _gone(self) -> Path:
        return self.directory / "gone"

    def hold(self) -> None:
        if self._come.exists():
            return
        self._come.touch()
        end_s = time.monotonic() + _HELD_S_MAX
        while not self._gone.exists() and time.monotonic() < end_s:
            time.sleep(0.01)

    def is_there(self) -> bool:
        return self._come.exists()

    def let_go(self) -> None:
        self._gone.touch()

    def forget(self) -> None:
        """The next row that comes is held."""
        self._gone.unlink(missing_ok=True)  # before the row is there that waits for it
        self._come.unlink(missing_ok=True)
