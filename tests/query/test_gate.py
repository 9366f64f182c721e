"""A stop() that waits says for which batch, also if that ends while it is about to say so."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from braided.api.query import ElasticQuery
from braided.query.gate import Gate


class Batch:
    """Batch 42, which runs until it is told to end, in a thread as Spark's is."""

    def __init__(self, gate: Gate) -> None:
        self._told, self._begun = threading.Event(), threading.Event()
        self._gate = gate
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._begun.wait(60)

    def _run(self) -> None:
        with self._gate.batch(42, lambda: True):
            self._begun.set()
            assert self._told.wait(60)

    def end(self) -> None:
        self._told.set()
        self._thread.join()


class EndsAfterALook(Gate):
    """Its batch ends as soon as somebody has looked whether it runs."""

    batch_of: Batch

    def shut(self, timeout_s: float) -> Any:
        found = super().shut(timeout_s)
        self.batch_of.end()
        return found


def test_the_gate_tells_which_batch_still_runs() -> None:
    gate = Gate()
    batch = Batch(gate)
    assert gate.shut(0.01) == 42
    batch.end()
    assert gate.shut(0.01) is None


def test_a_stop_names_the_batch_that_it_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    gate = EndsAfterALook()
    gate.batch_of = Batch(gate)
    query: Any = SimpleNamespace(
        _engine=SimpleNamespace(gate=gate), _opened=SimpleNamespace(stop_timeout_s=0.01)
    )
    with caplog.at_level(logging.WARNING, "braided"):
        assert ElasticQuery._shut(query)
    assert [record.getMessage() for record in caplog.records] == [
        "stop: waiting for batch 42, at most 0.01 s"
    ]
