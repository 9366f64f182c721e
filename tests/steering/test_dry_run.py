"""What a command would do, on one host and on several, from what is known between two batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from braided.control.measure.estimator import Estimator, SlotTotals
from braided.control.routing.balance import imbalance
from braided.control.routing.table import RoutingTable
from braided.hosts.host_map import HostMap
from braided.hosts.transition import Transition
from braided.spark.executors import Executor
from braided.spark.tick import Bell
from braided.steering.commands import Commands
from braided.steering.dry_run import DryRuns
from braided.store.history.manifest import View

SLOTS = 8
TABLE = RoutingTable(3, 2, np.arange(SLOTS) % 2, hosts=("a", "b"))
BUSY = SlotTotals(np.array([9.0, 1, 9, 1, 9, 1, 9, 1]), np.array([9.0, 1, 9, 1, 9, 1, 9, 1]))


class ThreeHosts:
    """Executors of two cores each on three hosts."""

    def observed(self) -> list[Executor]:
        return [Executor(str(n), host, 2) for n, host in enumerate("abc")]


def estimator() -> Estimator:
    made = Estimator(slots={"op": SLOTS})
    made.add({"op": BUSY})
    return made


def transition(table: RoutingTable, known: bool = True) -> Transition:
    hosts = HostMap(cast(Any, ThreeHosts()))
    hosts.observe()
    hosts.found_fit("012")
    if known:
        hosts.add_operator("op", View.empty(), table)
        hosts.brought("op", [0, 2, 4, 6], "a")
        hosts.brought("op", [1, 3, 5, 7], "b")
        hosts.state_bytes("op")[:] = 1000
    return Transition(hosts, {"op": 0}, {"op": ()}, cast(Any, None), None, prefetch=True)


def test_on_one_host_it_is_what_the_next_batch_takes() -> None:
    table = replace(TABLE, hosts=())
    commands, measured = Commands({"op": table}, Bell()), estimator()
    runs = DryRuns(commands, measured, None)
    plan = runs.of(commands.to_rebalance(None))
    assert commands.take(measured.load) == {"op": table}  # nothing has changed
    operator = plan.operators["op"]
    assert operator.imbalance_before == imbalance(table, measured.load("op"))
    assert operator.imbalance_after < 1.2 < operator.imbalance_before
    assert (plan.pause_s, plan.bytes_to_other_hosts) == (0, 0)
    assert {(move.from_host, move.to_host) for move in operator.moves} == {("", "")}
    commands.ask(commands.to_rebalance(None))
    assert commands.take(measured.load) == {"op": operator.after}


def test_channels_that_are_new_are_placed_as_the_batch_would_place_them() -> None:
    commands, measured, hosts = Commands({"op": TABLE}, Bell()), estimator(), transition(TABLE)
    plan = DryRuns(commands, measured, hosts).of(commands.to_rescale(4, None))
    operator = plan.operators["op"]
    commands.ask(commands.to_rescale(4, None))
    wanted = commands.take(measured.load)
    admitted = hosts.admit({"op": TABLE}, wanted, View.empty(), urgent=True).tables
    assert {"op": operator.after} == admitted
    assert operator.after.hosts[:2] == TABLE.hosts and all(operator.after.hosts)
    read = [move for move in operator.moves if move.to_other_host]
    assert read and plan.bytes_to_other_hosts == 1000 * len(read) and plan.pause_s > 0
    assert plan.is_prefetched and "to another host" in str(plan)


def test_before_the_first_batch_nothing_is_known_of_hosts() -> None:
    first = RoutingTable.initial(SLOTS, 2)
    commands = Commands({"op": first}, Bell())
    runs = DryRuns(commands, estimator(), transition(first, known=False))
    plan = runs.of(commands.to_rescale(4, None))
    assert plan.operators["op"].channels_after == 4
    assert plan.slots_to_other_hosts == 0
