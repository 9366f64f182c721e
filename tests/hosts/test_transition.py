"""What is held until its state is there, and what does not wait for that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from braided.control.routing.key_assignment import KeyAssignment
from braided.control.routing.pins import hash_slot
from braided.control.routing.table import Pin, RoutingTable
from braided.hosts.host_map import HostMap
from braided.hosts.transition import Transition
from braided.spark.executors import Executor
from braided.spark.tick import Bell
from braided.steering.commands import Commands
from braided.store.history.manifest import View

SLOTS = 8
NAMES = ("first", "second")
TABLE = RoutingTable(3, 2, np.arange(SLOTS) % 2, hosts=("a", "b"))
HOT = Pin(b"hot", 1, 2, 4)
_HASHES = np.arange(100, 140)
KEYS = KeyAssignment.of(
    [b"%d" % n for n in range(40)],
    _HASHES,
    _HASHES,
    # Next to the slot of its hash, which is on the other host.
    (hash_slot(_HASHES, SLOTS) + 1) % SLOTS,
)


class TwoHosts:
    def observed(self) -> list[Executor]:
        return [Executor(str(n), host, 2) for n, host in enumerate("ab")]


class NeverDone:
    """Errands that take for ever, and how many there are."""

    def __init__(self) -> None:
        self.begun = 0

    def start(self, _: Callable[[], object], rings: bool = True) -> threading.Event:
        self.begun += 1
        return threading.Event()


class Version:
    """State in every slot."""

    bytes, keys = 0, 0

    def length(self, _: int) -> int:
        return 1


def transition(errands: NeverDone) -> Transition:
    hosts = HostMap(cast(Any, TwoHosts()))
    hosts.observe()
    hosts.found_fit("01")
    for name in NAMES:
        hosts.add_operator(name, View.empty(), TABLE)
        hosts.brought(name, range(0, SLOTS, 2), "a")
        hosts.brought(name, range(1, SLOTS, 2), "b")
        hosts.state_bytes(name)[:] = 1e9
    levels, upstream = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, ())
    return Transition(hosts, levels, upstream, cast(Any, errands), None, prefetch=True)


def test_a_hot_key_goes_alone_where_many_keys_wait_for_their_state() -> None:
    errands = NeverDone()
    hosts, tables = transition(errands), dict.fromkeys(NAMES, TABLE)
    commands = Commands(tables, Bell())
    view = View("", 0, cast(Any, dict.fromkeys(NAMES, Version())), ())

    def batch() -> dict[str, RoutingTable]:
        nonlocal tables
        found = hosts.admit(tables, commands.take(lambda _: None), view)
        if found.held:
            commands.hold(found.held)
        tables = found.tables
        commands.done(tables)
        return tables

    commands.propose_assignment(dict.fromkeys(NAMES, KEYS))
    assert batch() == dict.fromkeys(NAMES, TABLE)
    assert errands.begun == 1
    commands.propose_pin("first", HOT)
    after = batch()
    assert after["first"].pins == (HOT,) and not after["first"].assigned
    assert after["second"] == TABLE
    assert errands.begun == 1  # what was sent for is what is waited for
    assert batch() == after
    # When the state is there all keys go, and the hot one stays where it is.
    assert hosts._fetching is not None
    hosts._fetching.done.set()
    after = batch()
    assert all(after[name].assigned == KEYS for name in NAMES)
    assert after["first"].pins == (HOT,) and not after["second"].pins


def test_a_hot_key_takes_along_what_else_is_decided_with_it() -> None:
    hosts = transition(NeverDone())
    view = View("", 0, cast(Any, dict.fromkeys(NAMES, Version())), ())
    before, moved = dict.fromkeys(NAMES, TABLE), TABLE.next([1, 1, 1, 1, 0, 1, 0, 1])
    waits = hosts.admit(before, {"first": moved, "second": TABLE}, view)
    assert waits.tables == before and set(waits.held) == {"first"}
    wanted = {"first": replace(moved, pins=(HOT,)), "second": TABLE}
    admitted = hosts.admit(before, wanted, view)
    assert admitted.tables == wanted and not admitted.held
