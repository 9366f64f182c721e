"""What a command would do, without doing it."""

from __future__ import annotations

from braided.control.measure.estimator import Estimator
from braided.control.planned_change import PlannedChange, SlotFacts, plan_change
from braided.control.routing.command import Command
from braided.control.routing.table import Loads
from braided.hosts.transition import Transition
from braided.steering.commands import Commands

__all__ = ["DryRuns"]


class DryRuns:
    """Follows commands on the way that the next batch would take them, with what is known now."""

    def __init__(
        self, commands: Commands, estimator: Estimator, transition: Transition | None
    ) -> None:
        self._commands = commands
        self._estimator = estimator
        self._transition = transition

    def loads(self) -> dict[str, Loads]:
        """What each slot is expected to cost, by operator."""
        return {name: self._estimator.load(name) for name in self._estimator.loads()}

    def of(self, command: Command) -> PlannedChange:
        before, after = self._commands.foresee(command, self._estimator.load)
        loads = {name: self._estimator.load(name) for name in before}
        if self._transition is not None:
            return self._transition.plan(before, after, loads)
        return plan_change(before, after, {name: SlotFacts(load) for name, load in loads.items()})
