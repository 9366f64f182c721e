"""What the slots of each operator cost, as its batches have shown so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braided.control.measure.slot_loads import SlotLoads
from braided.control.routing.table import Loads
from braided.tasks.reports import ChannelReport

__all__ = ["OperatorLoads"]


class OperatorLoads:
    """Slot loads by operator, for commands and for the progress."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        self._loads = {name: SlotLoads(count) for name, count in slots.items()}

    def add(self, reports: Mapping[str, Sequence[ChannelReport]]) -> None:
        """What the channels of a batch have measured."""
        for name, channels in reports.items():
            loads = self._loads[name]
            loads.begin_batch()
            for channel in channels:
                if channel.slots:
                    slots, rows, busy = zip(
                        *[(s.slot, s.rows, s.busy_ns) for s in channel.slots], strict=True
                    )
                    loads.add(slots, rows, busy)

    def load(self, name: str) -> Loads:
        return self._loads[name].load()

    def all(self) -> dict[str, Loads]:
        return {name: loads.load() for name, loads in self._loads.items()}
