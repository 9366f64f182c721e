"""The tables that were in effect, and the way back along them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from braided.control.routing.history import KEPT, Routing, RoutingHistory
from braided.control.routing.rescale import rescale
from braided.control.routing.table import Pin, RoutingTable

FIRST = RoutingTable.initial(8, 2)
PIN = Pin(b"hot", hash=11, check=5, slot=6)


def history_of(*tables: RoutingTable) -> RoutingHistory:
    history = RoutingHistory()
    for batch, table in enumerate(tables):
        history = history.noting(batch, {"op": table})
    return history


def test_only_tables_that_are_new_are_noted_each_with_what_changed() -> None:
    more = rescale(FIRST, 4)
    pinned = RoutingTable(2, 4, more.slots, (PIN,))
    free = replace(pinned, epoch=3, pins=())
    placed = replace(free, epoch=4, hosts=("a", "a", "b", "b"))
    moved = replace(placed, epoch=5, hosts=("a", "a", "b", "c"))
    again = replace(moved, epoch=6)
    home = Pin(b"hot", hash=11, check=5, slot=3, shares=(1, 2))
    split = replace(again, epoch=7, pins=(home,))
    whole = replace(again, epoch=8)
    history = history_of(FIRST, FIRST, more, more, pinned, free, placed, moved, again, split, whole)
    assert [str(entry) for entry in history.entries] == [
        "batch 0: operator op: 2 channels, 8 slots",
        "batch 2: operator op: 2 -> 4 channels, 4 slots moved",
        "batch 4: operator op: 1 key pinned",
        "batch 5: operator op: 1 key let go",
        "batch 6: operator op: channels have hosts",
        "batch 7: operator op: 1 channel on another host",
        "batch 8: operator op: a new epoch",
        "batch 9: operator op: 1 key split",
        "batch 10: operator op: 1 key whole again",
    ]
    assert [entry.epochs["op"] for entry in history.entries] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert history.noting(11, {"op": whole}) is history


def test_a_step_back_is_one_of_slots_and_not_of_hosts_or_pins() -> None:
    more = rescale(FIRST, 4)
    pinned = RoutingTable(2, 4, more.slots, (PIN,))
    rehoused = replace(pinned, epoch=3, hosts=("a", "a", "b", "b"))
    third = rescale(rehoused, 3)
    history = history_of(FIRST, more, pinned, rehoused, third)
    assert history.steps == 2
    back = [history.back(steps) for steps in (1, 2, 3)]
    assert [None if entry is None else entry.batch for entry in back] == [3, 0, None]
    assert RoutingHistory().back(1) is None
    assert history_of(FIRST).back(1) is None


def test_an_operator_that_is_new_is_told_and_no_step() -> None:
    history = history_of(FIRST).noting(5, {"op": FIRST, "late": RoutingTable.initial(4, 1)})
    assert history.entries[-1].change == "operator late: 1 channel, 4 slots"
    assert history.steps == 0
    history = history.noting(6, {"op": rescale(FIRST, 3), "late": RoutingTable.initial(4, 1)})
    back = history.back(1)
    assert back is not None and back.tables == {"op": FIRST, "late": RoutingTable.initial(4, 1)}


def test_routing_is_a_dict_with_a_history() -> None:
    history = history_of(FIRST)
    routing = Routing({"op": FIRST}, history)
    assert routing == {"op": FIRST} and routing["op"] is FIRST
    assert list(routing.items()) == [("op", FIRST)]
    assert routing.history == history.entries


@given(st.lists(st.integers(1, 4), max_size=KEPT + 20))
def test_the_newest_are_kept_and_every_step_leads_to_other_slots(channels: list[int]) -> None:
    history, table, noted = RoutingHistory(), FIRST, [FIRST]
    history = history.noting(0, {"op": table})
    for batch, number in enumerate(channels, 1):
        table = rescale(table, number)
        history = history.noting(batch, {"op": table})
        if table is not noted[-1]:
            noted.append(table)
    assert [entry.tables["op"] for entry in history.entries] == noted[-KEPT:]
    assert history.steps == min(len(noted), KEPT) - 1
    for steps in range(1, history.steps + 1):
        entry = history.back(steps)
        assert entry is not None and entry.tables["op"] is noted[-1 - steps]
    assert history.back(history.steps + 1) is None
    last = history.entries[-1].tables["op"]
    assert np.array_equal(last.slots, table.slots)
