"""What steps that are new to the checkpoint start with: nothing, given rows, or imported state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braided.flow.step import KeyedStep
from braided.spark.offset_log import BatchTimes
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta, View
from braided.tasks.first_state import FirstState

__all__ = ["FirstStates"]


class FirstStates:
    """Written by the batch that is the first of a step, and counting from its manifest on."""

    def __init__(
        self,
        steps: Sequence[KeyedStep],
        metas: Mapping[str, OperatorMeta],
        imported: Mapping[str, FirstState],
        store: Store,
    ) -> None:
        self._steps = steps
        self._metas = metas
        self._imported = imported
        self._store = store

    def are_due(self, view: View) -> bool:
        """Whether the next batch is the first of a step that starts with state."""
        return any(
            step.starts_with_state or step.name in self._imported
            for step in self._steps
            if step.name not in view.operators
        )

    def write(self, view: View, batch: int, times: BatchTimes) -> dict[str, FirstState]:
        """What each step starts with that the view does not know yet."""
        states = {}
        for step in self._steps:
            if step.name in view.operators:
                continue
            if step.name in self._imported:
                states[step.name] = self._imported[step.name]
            elif step.starts_with_state:
                states[step.name] = step.write_first_state(
                    self._metas[step.name], self._store, batch, times
                )
        return states
