"""Commands and proposals that do not take effect at once: tables that wait for state or hosts; and
what commands would do, and undo.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from braided.control.routing.history import RoutingHistory
from braided.control.routing.key_assignment import KeyAssignment
from braided.control.routing.rescale import rescale
from braided.control.routing.table import Loads, Pin, RoutingTable
from braided.errors import NoEarlierTableError
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


def test_keys_that_are_held_are_not_assigned_on_other_channels_than_they_were_meant_for() -> None:
    asked = commands()
    keys = KeyAssignment.of([b"k"], [3], [4], [5])
    asked.propose_assignment({"op": keys}, {"op": TABLE})
    for _ in range(2):
        taken = asked.take(load_of)
        assert taken["op"].assigned == keys
        asked.hold(taken)
        asked.done({"op": TABLE})
    asked.rescale(4, None)
    rescaled = asked.take(load_of)["op"]
    assert rescaled.channels == 4 and not rescaled.assigned
    asked.hold({"op": rescaled})
    asked.done({"op": TABLE})
    again = asked.take(load_of)["op"]
    assert again.channels == 4 and not again.assigned


def test_slots_that_keys_on_their_way_count_on_are_left_where_they_are() -> None:
    asked = Commands({"one": TABLE, "two": TABLE, "rest": TABLE}, Bell())
    asked.propose_assignment({"one": KEYS, "two": OTHERS}, {"one": TABLE, "two": TABLE})
    taken = asked.take(load_of)
    assert asked.spoken_for() == set()
    asked.hold({"one": taken["one"]})  # the other one has its state already
    assert asked.spoken_for() == {"one", "two"}
    asked.done({"one": TABLE, "two": TABLE, "rest": TABLE})
    assert asked.take(load_of)["one"].assigned == KEYS
    assert asked.spoken_for() == set()


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


@pytest.mark.parametrize("hosts", [(), ("a", "b")])
def test_a_proposal_for_the_table_in_effect_gives_way_to_a_held_one(hosts: tuple[str, ...]) -> None:
    table = RoutingTable(3, 2, TABLE.slots, hosts=hosts)
    asked = Commands({"op": table}, Bell())
    asked.rescale(4, None)
    asked.hold(asked.take(load_of))
    asked.propose({"op": table.next(table.slots[::-1])})
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


# -- dry runs, and the way back ----------------------------------------------------------------


def test_what_is_foreseen_is_what_the_next_batch_takes_and_changes_nothing() -> None:
    asked = commands()
    asked.rescale(4, None)
    before, after = asked.foresee(asked.to_rescale(3, None), load_of)
    assert before == {"op": TABLE} and after["op"].channels == 3
    assert asked.take(load_of)["op"].channels == 4  # only what was asked for
    asked.ask(asked.to_rescale(3, None))
    assert asked.take(load_of) == after


def test_a_proposal_is_not_foreseen_and_is_taken_all_the_same() -> None:
    asked = commands()
    asked.propose({"op": TABLE.next(TABLE.slots[::-1])})
    before, after = asked.foresee(asked.to_rebalance(None), load_of)
    assert after == before
    assert asked.take(load_of)["op"].epoch == 1


def history_of(*tables: RoutingTable) -> RoutingHistory:
    history = RoutingHistory()
    for batch, table in enumerate(tables):
        history = history.noting(batch, {"op": table})
    return history


def test_a_revert_is_a_new_epoch_with_the_slots_of_then_and_the_pins_of_now() -> None:
    pin = Pin(b"hot", hash=11, check=5, slot=6)
    lopsided = TABLE.next([0, 0, 0, 0, 0, 1, 1, 1])
    more = rescale(lopsided, 4)
    now = RoutingTable(7, 4, more.slots, (pin,), ("a", "b", "a", "b"))
    asked = Commands({"op": now}, Bell())
    history = history_of(TABLE, lopsided, more, now)
    asked.ask(asked.to_revert(history, 1))
    back = asked.take(load_of)["op"]
    assert back.slots.tolist() == lopsided.slots.tolist()
    assert (back.channels, back.epoch, back.pins, back.hosts) == (2, 8, (pin,), ("a", "b"))
    asked.hold({"op": back})  # as any command, it waits for its state
    asked.done({"op": now})
    assert asked.take(load_of, {"op": 6})["op"] == back
    asked.done({"op": back})
    asked.ask(asked.to_revert(history.noting(4, {"op": back}), 1))
    forth = asked.take(load_of)["op"]
    assert forth.slots.tolist() == more.slots.tolist() and forth.epoch == 9


def test_a_revert_leaves_operators_alone_that_were_not_there_then() -> None:
    late = RoutingTable.initial(4, 2)
    more = rescale(TABLE, 4)
    asked = Commands({"op": more, "late": late}, Bell())
    history = history_of(TABLE, more).noting(2, {"op": more, "late": late})
    asked.ask(asked.to_revert(history, 1))
    taken = asked.take(load_of)
    assert taken["op"].slots.tolist() == TABLE.slots.tolist()
    assert taken["late"] is late


def test_a_revert_to_nowhere_is_refused_with_how_far_it_goes() -> None:
    asked = commands()
    for history, steps in ((RoutingHistory(), 1), (history_of(TABLE, rescale(TABLE, 4)), 2)):
        with pytest.raises(NoEarlierTableError, match=rf"has {history.steps} steps"):
            asked.to_revert(history, steps)
    refused: list[Any] = [0, -1, True, 1.0, None]
    for wrong in refused:
        with pytest.raises(ValueError, match="at least 1"):
            asked.to_revert(RoutingHistory(), wrong)


KEYS = KeyAssignment.of([b"a", b"b"], [11, -3], [5, 6], [6, 0])
OTHERS = KeyAssignment.of([b"a"], [11], [5], [1])


def test_keys_of_all_operators_are_assigned_with_one_batch_or_none_is() -> None:
    asked = Commands({"one": TABLE, "two": TABLE, "rest": TABLE}, Bell())
    asked.propose_assignment({"one": OTHERS})
    asked.propose_assignment({"one": KEYS, "two": OTHERS}, {"one": TABLE, "two": TABLE})
    now = asked.take(load_of)
    assert (now["one"].assigned, now["two"].assigned) == (KEYS, OTHERS)
    assert (now["one"].epoch, now["two"].epoch, now["rest"]) == (1, 1, TABLE)
    asked.done(now)
    assert asked.take(load_of) == now
    # A user's command comes in between: what was made for other channels is no use.
    asked.propose_assignment({"one": OTHERS, "two": KEYS}, now)
    asked.rescale(3, "two")
    rescaled = asked.take(load_of)
    assert (rescaled["one"].assigned, rescaled["two"].assigned) == (KEYS, OTHERS)
    assert rescaled["two"].channels == 3 and rescaled["one"] is now["one"]
    asked.done(rescaled)
    assert asked.take(load_of) == rescaled, "it is dropped, and not kept for later"
    with pytest.raises(ValueError, match="there is no operator 'three'"):
        asked.propose_assignment({"three": KEYS})


def test_keys_that_a_user_assigns_hold_whatever_else_is_asked_for() -> None:
    asked = commands()
    asked.ask(asked.to_assign({"op": KEYS}))
    asked.rescale(3, None)
    asked.propose({"op": TABLE.next(np.zeros(8, dtype=int))})
    wanted = asked.take(load_of)["op"]
    assert (wanted.assigned, wanted.channels) == (KEYS, 3)
    # What waits for state on its way is taken again as a whole, with what comes meanwhile.
    asked.hold({"op": wanted})
    asked.done({"op": TABLE})
    asked.propose_pin("op", Pin(b"a", 11, 5, 2))
    again = asked.take(load_of)["op"]
    assert (again.assigned, again.channels, again.pins[0].slot) == (KEYS, 3, 2)
    asked.done({"op": again})
    asked.propose({"op": RoutingTable(again.epoch + 1, 3, again.slots, again.pins)})
    assert asked.take(load_of)["op"] is again, "nobody lets keys go by a table"
