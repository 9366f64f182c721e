"""Lends the operator of a task to one key after the other, each with its record and timers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from braided.errors import BraidedError, StateValueError
from braided.kinds.operator.runtime import OperatorRuntime
from braided.store.slots.layout import record_suffix, timer_suffix, unwrap, wrap
from braided.store.slots.slot import SlotState
from braided.tasks.channel import Channel
from braided.tasks.reports import KeyRecord, partials_of
from braided.tasks.split_keys import split_keys_of
from braided.tasks.user_code import UserCode

__all__ = ["KeyRunner"]


class KeyRunner:
    """Opens a key, so that the operator's hooks run for it, and writes back what they made of it.

    A key stays open until another is opened: its rows may go on in the next chunk. One that is
    split begins as new in every share, and what it comes to there is no state of the slot but a
    part of it, which is merged with the others when the batch is committed.
    """

    slot: SlotState
    """The slot that was entered last."""

    def __init__(
        self,
        channel: Channel,
        runtime: OperatorRuntime,
        code: UserCode,
        when_entered: Callable[[int], None],
        when_opened: Callable[[bytes], None] | None,
        when_closed: Callable[[Any], None],
    ) -> None:
        """`when_entered` is told of every slot that is gone to, `when_opened` and `when_closed` of
        every key, the latter as a Row.
        """
        self.runtime = runtime
        self.code = code
        self.key: bytes | None = None
        """The key that is open."""
        self.slot_number = -1
        self.keys_touched = 0
        self.row: Any = None
        """The last row of the key, for the error of a value that can't be stored."""
        self.split = split_keys_of(channel)
        """Keys whose rows are dealt out to several slots."""
        self._partials: dict[tuple[bytes, int], bytes | None] = {}
        self._when_entered = when_entered
        self._when_opened = when_opened
        self._when_closed = when_closed
        self._channel = channel
        self._suffix = b""
        self._is_long = False

    def open(self, slot: int, key: bytes, key_row: Any) -> None:
        self.close()
        if slot != self.slot_number:
            self.enter(slot)
        self.key = key
        self._suffix, self._is_long = record_suffix(key)
        if key in self.split:
            raw = self._partials.get((key, slot))
        else:
            raw = self.slot.get(self._suffix)
            if raw is not None and self._is_long:
                raw = unwrap(self._suffix, raw)[1]
        self.runtime.open(key_row, raw)
        self.keys_touched += 1
        if self._when_opened is not None:
            self._when_opened(key)

    def close(self) -> None:
        """Writes the open key, if there is one."""
        if self.key is None:
            return
        slot, key = self.slot, self.key
        record = self.record()
        self._when_closed(self.runtime.op.key)
        if key in self.split:
            self._partials[key, self.slot_number] = record
            self.key = None
            return
        if record is None:
            slot.delete(self._suffix)
        else:
            slot.put(self._suffix, wrap(key, record) if self._is_long else record)
        self.put_timers(slot, key)
        self.key = None

    def partials(self) -> tuple[KeyRecord, ...]:
        """What the rows of split keys came to in each share, where they changed anything."""
        return partials_of(self._partials)

    def record(self) -> bytes | None:
        """The record of the key that is lent the operator, as it is now."""
        try:
            return self.runtime.close()
        except StateValueError as error:
            raise self.unfit(error) from None

    def unfit(self, error: StateValueError) -> BraidedError:
        """What to raise where the key that is lent the operator holds what can't be stored."""
        return self.code.failure(error, self.runtime.op.key, self.row)

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
        self._when_entered(slot)
        self.code.start()
        return self.slot
