"""The routing table is a value: valid when made, unchangeable, the same after a round trip."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.control.routing.table import RoutingTable, moves
from braided.store.history.manifest import decode_table, encode_table
from support.routing_tables import tables


def written_and_read(table: RoutingTable) -> RoutingTable:
    slots = decode_table(encode_table(table.slots), table.slots.size)
    return RoutingTable(table.epoch, table.channels, slots, table.pins)


@given(st.integers(1, 300), st.integers(1, 300))
def test_the_first_table_deals_slots_out_evenly(slots: int, channels: int) -> None:
    table = RoutingTable.initial(slots, channels)
    counts = table.counts()
    assert (table.epoch, table.channels, table.slots.size) == (0, channels, slots)
    assert counts.size == channels
    assert counts.sum() == slots
    assert counts.max() - counts.min() <= 1


@given(tables())
def test_every_slot_is_in_exactly_one_channel(table: RoutingTable) -> None:
    owned = np.concatenate([table.of(channel) for channel in range(table.channels)])
    assert sorted(owned.tolist()) == list(range(table.slots.size))


@given(tables())
def test_a_table_survives_being_written_down(table: RoutingTable) -> None:
    read = written_and_read(table)
    assert read == table
    assert hash(read) == hash(table)


def test_channel_numbers_beyond_16_bits_survive_too() -> None:
    table = RoutingTable(3, 70_000, np.array([0, 69_999, 65_536]))
    assert written_and_read(table) == table


@pytest.mark.parametrize("text", ["", "AAA", "AAAA", "not base64!", "//8="])
def test_text_that_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        RoutingTable(0, 4, decode_table(text, slots=1))


def test_a_table_can_not_be_changed_from_outside() -> None:
    mine = np.array([0, 1, 0])
    table = RoutingTable(0, 2, mine)
    mine[0] = 1
    assert table.slots.tolist() == [0, 1, 0]
    with pytest.raises(ValueError):
        table.slots[0] = 1


@pytest.mark.parametrize(
    ("channels", "slots", "what"),
    [
        (2, [0, 2], "slot 1 is routed to channel 2"),
        (2, [-1], "slot 0 is routed to channel -1"),
        (0, [0], "needs a channel"),
        (2, [], "at least one"),
        (2, [[0, 1]], "one row"),
        (2, [0.5], "channel numbers"),
    ],
)
def test_an_invalid_table_is_refused(channels: int, slots: list[object], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        RoutingTable(0, channels, np.array(slots))


def test_the_epoch_counts_changes_only() -> None:
    table = RoutingTable(4, 2, np.array([0, 1]))
    assert table.next([0, 1]) is table
    assert table.next([1, 1]) == RoutingTable(5, 2, np.array([1, 1]))
    assert table.next([0, 1], 3) == RoutingTable(5, 3, np.array([0, 1]))


def test_moves_are_the_slots_with_another_channel() -> None:
    table = RoutingTable(0, 3, np.array([0, 1, 2, 0]))
    assert moves(table, table.next([0, 2, 2, 1])).tolist() == [1, 3]
    assert moves(table, table).size == 0
