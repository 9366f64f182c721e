"""Lends the operator of a task to one key after the other, each with its record and timers."""

from __future__ import annotations

from typing import Any

from braided.errors import StateValueError
from braided.kinds.operator.runtime import OperatorRuntime
from braided.store.slots.layout import record_suffix, timer_suffix, unwrap, wrap
from braided.store.slots.slot import SlotState
from braided.tasks.channel import Channel
from braided.tasks.user_code import UserCode

__all__ = ["KeyRunner"]


class KeyRunner:
    """Opens a key, so that the operator's hooks run for it, and writes back what they made of it.

    A key stays open until another is opened: its rows may go on in the next chunk.
    """

    slot: SlotState
    """The slot that was entered last."""

    def __init__(self, channel: Channel, runtime: OperatorRuntime, code: UserCode) -> None:
        self.runtime = runtime
        self.code = code
        self.key: bytes | None = None
        """The key that is open."""
        self.slot_number = -1
        self.keys_touched = 0
        self._channel = channel
        self._suffix = b""
        self._is_long = False

    def open(self, slot: int, key: bytes, key_row: Any) -> None:
        self.close()
        if slot != self.slot_number:
            self.enter(slot)
        self.key = key
        self._suffix, self._is_long = record_suffix(key)
        raw = self.slot.get(self._suffix)
        if raw is not None and self._is_long:
            raw = unwrap(self._suffix, raw)[1]
        self.runtime.open(key_row, raw)
        self.keys_touched += 1

    def close(self) -> None:
        """Writes the open key, if there is one."""
        if self.key is None:
            return
        slot, key = self.slot, self.key
        record = self.record()
        if record is None:
            slot.delete(self._suffix)
        else:
            slot.put(self._suffix, wrap(key, record) if self._is_long else record)
        self.put_timers(slot, key)
        self.key = None

    def record(self) -> bytes | None:
        """The record of the key that is lent the operator, as it is now."""
        try:
            return self.runtime.close()
        except StateValueError as error:
            batch = self._channel.batch.batch
            where = f"key {self.runtime.op.key!r}, batch {batch}, which is not committed"
            raise StateValueError(f"{error} ({where})") from None

    def put_timers(self, slot: SlotState, key: bytes) -> None:
        """Writes the timers of the key whose record was taken last."""
        for ms in self.runtime.removed:
            slot.delete(timer_suffix(ms, key)[0])
        for ms in self.runtime.added:
            slot.put(*timer_suffix(ms, key))

    def enter(self, slot: int) -> SlotState:
        """Goes to a slot, in which the next keys are."""
        self.slot = self._channel.enter(slot)
        self.slot_number = slot
        self.code.start()
        return self.slot
