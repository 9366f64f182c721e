"""Commands and proposals that do not take effect at once: tables that wait for state or hosts."""

from __future__ import annotations

import numpy as np

from braided.control.routing.table import Loads, RoutingTable
from braided.spark.tick import Bell
from braided.steering.commands import Commands

TABLE = RoutingTable.initial(8, 2)


def load_of(_: str) -> Loads:
    return np.ones(8)


def commands() -> Commands:
    return Commands({"op": TABLE}, Bell())


def test_a_table_that_is_held_is_taken_again_until_it_is_in_effect() -> None:
    asked = commands()
    asked.rescale(4, None)
    wanted = asked.take(load_of)["op"]
    assert (wanted.channels, wanted.epoch) == (4, 1)
    for _ in range(3):
        asked.hold({"op": wanted})
        asked.done({"op": TABLE})  # batches go on by the table before
        again = asked.take(load_of)["op"]
        assert again == wanted
    asked.done({"op": wanted})
    assert asked.take(load_of)["op"] is wanted  # once, and not on top of itself


def test_a_held_table_follows_the_one_that_is_in_effect_by_then() -> None:
    asked = commands()
    asked.rescale(4, None)
    asked.hold(asked.take(load_of))
    mended = RoutingTable(1, 2, TABLE.slots, hosts=("a", "b"))  # a host was lost meanwhile
    asked.done({"op": mended})
    again = asked.take(load_of)["op"]
    assert (again.channels, again.epoch) == (4, 2)


def test_what_is_asked_for_meanwhile_comes_on_top_of_what_is_held() -> None:
    asked = commands()
    asked.rescale(4, None)
    asked.hold(asked.take(load_of))
    asked.done({"op": TABLE})
    asked.rescale(3, None)
    latest = asked.take(load_of)["op"]
    assert latest.channels == 3
    asked.done({"op": latest})
    assert asked.take(load_of)["op"] is latest


def test_a_proposal_for_the_table_in_effect_gives_way_to_a_held_one() -> None:
    asked = commands()
    asked.rescale(4, None)
    asked.hold(asked.take(load_of))
    asked.propose({"op": TABLE.next(TABLE.slots[::-1])})
    assert asked.take(load_of)["op"].channels == 4


def test_a_proposal_comes_in_place_of_a_held_table_that_is_for_hosts_alone() -> None:
    asked = Commands({"op": RoutingTable(3, 2, TABLE.slots, hosts=("a", "b"))}, Bell())
    asked.hold({"op": RoutingTable(4, 2, TABLE.slots, hosts=("a", "c"))})
    proposed = RoutingTable(4, 2, TABLE.slots[::-1], hosts=("a", "b"))
    asked.propose({"op": proposed})
    assert asked.take(load_of)["op"] == proposed


def test_channels_that_a_user_asked_for_are_not_outbid_while_they_wait() -> None:
    asked = commands()
    asked.rescale(1, None)
    for _ in range(2):
        wanted = asked.take(load_of, {"op": 6})["op"]
        assert wanted.channels == 1
        asked.hold({"op": wanted})
        asked.done({"op": TABLE})
    asked.done({"op": asked.take(load_of)["op"]})
    assert asked.take(load_of, {"op": 6})["op"].channels == 6
