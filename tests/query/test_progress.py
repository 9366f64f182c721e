"""Sections of a progress that has no batch."""

from __future__ import annotations

from typing import Any

from braided.query.progress import ProgressLog


class Silent:
    """A controller that has said nothing yet."""

    def said_of(self, batch: int) -> dict[str, Any] | None:
        return None


SILENT: Any = Silent()


def content(batch: int, channels: int) -> dict[str, Any]:
    operator = {"channels": channels, "rows": 5, "moves": 2, "keys": 7, "busyMs": [1.0, 2.0]}
    return {
        "batchId": batch,
        "redelivered": False,
        "operators": {"o": operator},
        "carryRows": 3,
        "stepsMs": {"admit": 1.0},
        "control": {"scale": "saso"},
    }


def idle_of(log: ProgressLog, batch: int) -> dict[str, Any]:
    found = log.idle(batch)
    assert found is not None
    return found


def test_between_batches_all_is_as_the_one_before_left_it_and_nothing_done() -> None:
    log = ProgressLog(SILENT, content(-1, 2))
    assert idle_of(log, 0)["operators"]["o"]["busyMs"] == [0.0, 0.0]
    log.add(0, content(0, 3))
    idle = idle_of(log, 1)
    operator = idle["operators"]["o"]
    assert (operator["channels"], operator["keys"]) == (3, 7)
    assert (operator["rows"], operator["moves"], operator["busyMs"]) == (0, 0, [0.0] * 3)
    assert (idle["batchId"], idle["carryRows"], idle["stepsMs"]) == (0, 3, {})
    shown = log.get(0)
    assert shown is not None and shown["operators"]["o"]["rows"] == 5


def test_after_a_batch_that_was_only_published_again_all_is_as_at_the_start() -> None:
    log = ProgressLog(SILENT, content(4, 2))
    again = log.published_again(4)
    assert (again["batchId"], again["redelivered"], again["carryRows"]) == (4, True, 3)
    operator = again["operators"]["o"]
    assert (operator["channels"], operator["keys"]) == (2, 7)
    assert (operator["rows"], operator["busyMs"]) == (0, [0.0] * 2)
    log.add(4, again)
    assert log.get(4) == again
    assert idle_of(log, 5)["redelivered"] is False
    assert idle_of(log, 5)["operators"]["o"]["channels"] == 2
    assert idle_of(log, 5)["control"] == {"scale": "saso"}


def test_of_batches_long_ago_nothing_is_said() -> None:
    log = ProgressLog(SILENT, content(-1, 2))
    for batch in range(500):
        log.add(batch, content(batch, 2))
    assert log.idle(3) is None
    assert log.idle(500) is not None
