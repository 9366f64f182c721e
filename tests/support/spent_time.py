"""A clock that goes by what is done, for tests of which slot a task's time is booked to."""

from __future__ import annotations

from typing import Any

import pytest

from braided.tasks import slot_meter, task

__all__ = ["Clock"]


class Clock:
    """Stands still but for what `spends` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        self._monkeypatch = monkeypatch
        for module in (slot_meter, task):
            monkeypatch.setattr(module, "perf_counter_ns", lambda: self.now_ns)

    def spends(self, owner: Any, name: str, spent_ns: int) -> None:
        """Every call of it takes so long."""
        call = getattr(owner, name)

        def slowly(*given: Any) -> Any:
            self.now_ns += spent_ns
            return call(*given)

        self._monkeypatch.setattr(owner, name, slowly)
