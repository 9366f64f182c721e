"""Keys that are to be where others are: what the controller has to know of them, and what it wants.

The controller knows keys by their bytes, and slots by number. Which slot a key's hash leads to, and
by which hashes its rows are recognised, Spark alone can tell: it is asked here, in one job for all
keys of an operator, when a period of counting is over.

None of this has to be: when it fails, that is noted as a policy's failure is, and everything else
that the controller does goes on. It is not tried again before the guard lets go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braided.control.loop import Controller, Cycle
from braided.control.policies.guarded import Guard
from braided.control.routing.key_assignment import KeyAssignment
from braided.control.routing.pins import hash_slot
from braided.control.worth import Prices
from braided.flow.key_hashes import KeyHashes
from braided.steering.commands import Commands
from braided.steering.pair_reports import remote_prices
from braided.tasks.failure import is_interrupt
from braided.tasks.reports import ChannelReport

__all__ = ["Locating"]

_NAME = "locality"
"""What the guard and the log call it."""


class Locating:
    """Asks the controller where keys should be, and proposes that."""

    def __init__(self, hashes: KeyHashes, commands: Commands, guard: Guard) -> None:
        self._hashes = hashes
        self._commands = commands
        self._guard = guard
        self._proposed: Mapping[str, KeyAssignment] = {}

    def locate(
        self,
        controller: Controller,
        cycle: Cycle,
        reports: Mapping[str, Sequence[ChannelReport]],
        prices: Prices,
    ) -> Cycle:
        """The cycle, with slots for keys where it is time for them and they pay."""
        if self._guard.is_held(_NAME):
            return cycle
        try:
            return self._locate(controller, cycle, reports, prices)
        except Exception as error:  # Spark's, of the job that hashes, or ours
            if is_interrupt(error):
                raise  # the query stops
            self._guard.failed(_NAME, error)
            controller.keys_unknown()
            return cycle

    def propose(self, controller: Controller, cycle: Cycle) -> None:
        """Leaves what the cycle wants, for all its operators in one batch."""
        if not cycle.keys:
            return
        try:
            self._propose(cycle)
        except Exception as error:  # as above
            if is_interrupt(error):
                raise  # the query stops
            self._guard.failed(_NAME, error)
            controller.keys_withdrawn()

    def _locate(
        self,
        controller: Controller,
        cycle: Cycle,
        reports: Mapping[str, Sequence[ChannelReport]],
        prices: Prices,
    ) -> Cycle:
        due = controller.keys_due()
        if not due:
            return cycle
        assigned = {name: each.table.assigned for name, each in cycle.view.operators.items()}
        if any(assigned.get(name) != keys for name, keys in self._proposed.items()):
            # A user's table came in between, say. By now it would be in effect.
            controller.keys_superseded()
        hash_slots = {
            name: self._hash_slots(name, sorted(keys), cycle.view.operators[name].load.size)
            for name, keys in due.items()
        }
        entries = {name: _as_dict(keys) for name, keys in assigned.items()}
        return controller.locate(cycle, hash_slots, entries, remote_prices(reports, prices))

    def _propose(self, cycle: Cycle) -> None:
        proposed = {}
        for name, planned in cycle.keys.items():
            keys = self._hashes.assigned(name, planned.keys, planned.slots)
            if keys is None:
                return
            proposed[name] = keys
        tables = {name: cycle.view.operators[name].table for name in proposed}
        self._proposed = proposed
        self._commands.propose_assignment(proposed, tables)

    def _hash_slots(self, name: str, keys: Sequence[bytes], slots: int) -> dict[bytes, int]:
        hashes = self._hashes.of_keys(name, keys)
        if hashes is None:
            return {}
        return {
            key: hash_slot(hashed, slots)
            for key, hashed in zip(keys, hashes[0].tolist(), strict=True)
        }


def _as_dict(assigned: KeyAssignment) -> dict[bytes, int]:
    return dict(zip(assigned.keys.to_pylist(), assigned.slots.tolist(), strict=True))
