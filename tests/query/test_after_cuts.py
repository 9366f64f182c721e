"""What a cut is said to have taken, in the progress and in the event log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from braided.control.events import CutShort
from braided.migrate.metrics import Commit
from braided.query.after_cuts import AfterCuts
from braided.tasks.outcome import CutAsked


class Batches:
    """Batches that end by a clock of the test's."""

    def __init__(self) -> None:
        self.noted: list[CutShort] = []
        self.after_cuts = AfterCuts(self.noted.append)
        self.number = 0

    def end(self, at_s: float, rows_left: int = 0, cut_s: float | None = None) -> dict[str, Any]:
        """One that gives out 80 rows, and was cut if it says when."""
        cut = None if cut_s is None else CutAsked("so it is", 2.0, cut_s, True)
        outcome: Any = SimpleNamespace(batch=self.number, rows_left=rows_left, cut=cut)
        self.number += 1
        return self.after_cuts.ended(outcome, Commit(at_s, 80))


def test_a_cut_is_followed_until_its_rest_is_done_and_output_is_stable() -> None:
    batches = Batches()
    assert [batches.end(at_s) for at_s in (70.0, 80.0, 90.0, 100.0)] == [{}] * 4
    cut = batches.end(106.0, rows_left=30, cut_s=105.0)["cut"]
    assert (cut["why"], cut["afterMs"], cut["rowsLeft"]) == ("so it is", 2000.0, 30)
    assert (cut["drain_s"], cut["restore_s"], cut["catch_up_s"]) == (1.0, None, None)

    after = batches.end(110.0, rows_left=10)["afterCut"]
    assert (after["drain_s"], after["restore_s"], after["catch_up_s"]) == (1.0, 5.0, None)
    assert batches.end(120.0)["afterCut"]["catch_up_s"] == 15.0
    shown = [batches.end(at_s) for at_s in (130.0, 140.0, 150.0, 160.0, 170.0, 180.0)]
    assert [each["afterCut"]["stabilise_s"] for each in shown[:5]] == [None] * 4 + [5.0]
    assert shown[5] == {}
    first, last = batches.noted
    assert (first.batch, first.rows_left, first.metrics["drain_s"]) == (4, 30, 1.0)
    assert (last.batch, last.why, last.metrics["stabilise_s"]) == (11, "so it is", 5.0)


def test_the_next_cut_ends_the_one_before() -> None:
    batches = Batches()
    batches.end(10.0, rows_left=30, cut_s=9.0)
    shown = batches.end(20.0, rows_left=20, cut_s=18.0)
    assert shown["afterCut"]["restore_s"] == 11.0
    assert (shown["cut"]["drain_s"], shown["cut"]["restore_s"]) == (2.0, None)
    # Of so few batches no rate is known that output could come back to.
    assert batches.end(30.0)["afterCut"]["catch_up_s"] == 12.0
    assert batches.end(40.0) == {}
    assert [(each.batch, each.rows_left) for each in batches.noted] == [
        (0, 30),
        (1, 30),
        (1, 20),
        (2, 20),
    ]


def test_a_cut_that_left_nothing_is_none() -> None:
    batches = Batches()
    assert batches.end(10.0, rows_left=0, cut_s=9.0) == {}
    assert batches.noted == []
