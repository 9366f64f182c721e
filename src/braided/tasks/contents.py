"""What a checkpoint holds of a keyed step, as tasks read it from durable files.

Each kind of step keeps its state in its own way and has a reader for it in its folder of `kinds/`.
A reader is made on the driver and travels to tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.types import DataType

from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorVersion
from braided.store.slots.channel_state import ChannelState, SnapshotLimits

__all__ = ["Contents", "KeyState", "StateReader", "read_records"]

Contents = dict[int, dict[bytes, Any]]
"""By slot and key, in whatever form is the cheapest to compare."""


class KeyState(NamedTuple):
    """What one key has."""

    values: tuple[Any, ...]
    timers: tuple[int, ...]


class StateReader(Protocol):
    """Reads the state of one step, at any version, by what the newest version says of it: so
    what it shows of older ones is alike.
    """

    @property
    def type(self) -> DataType:
        """Of the column that `column` makes."""

    @property
    def expires(self) -> bool:
        """Whether something may go with time alone."""

    def read(
        self, files: Store, version: OperatorVersion, batch_time_ms: int, slots: Iterable[int]
    ) -> Contents:
        """The keys of slots, at a version and the time of its batch."""

    def key_state(self, stored: Any) -> KeyState:
        """What one of these keys has."""

    def column(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.Array:
        """The values of many keys; None is null."""


def read_records(
    files: Store, operator: str, version: OperatorVersion, slots: Iterable[int]
) -> Contents:
    """The records of slots, as they are stored."""
    contents: Contents = {slot: {} for slot in slots}
    state = ChannelState(files, None, operator, version, SnapshotLimits())
    state.open_slots(contents)
    for slot, records in contents.items():
        records.update(state.slot(slot).records())
    state.close()
    return contents
