"""Timers of a channel that are due, and what orders what they give out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

from braided.store.slots.layout import TIMER, timer_bound, timer_parts
from braided.tasks.channel import Channel
from braided.tasks.columns import TIMER_SEQUENCE
from braided.tasks.order import Tag, key_bits

__all__ = [
    "BatchClock",
    "DueTimer",
    "clock_ms",
    "due_timers",
    "timer_tags",
    "timers_by_slot",
]

_KEY_BITS = 44
_NUMBER_BITS = 18
"""A timer's output is numbered below the bits of its key: both fit a bigint."""


DueTimer: TypeAlias = tuple[int, bytes, int]
"""When it was to fire, in milliseconds, the key it belongs to, and the key's slot."""


class BatchClock(Protocol):
    """A batch, or what is known of it before it is begun."""

    @property
    def batch_time_ms(self) -> int: ...

    @property
    def watermark_ms(self) -> int: ...


def clock_ms(time_mode: str, batch: BatchClock) -> int:
    """The time by which timers are due in a batch."""
    return batch.watermark_ms if time_mode == "EventTime" else batch.batch_time_ms


def due_timers(channel: Channel, now_ms: int) -> list[DueTimer]:
    """All that are due by now, in the slots that the task has touched and in those the driver
    names, by slot and then by time.

    A list, so that a timer that is set while these fire waits for the next batch: this one ends.
    To look for them is work for all of these slots, and not for the one that had the last row.
    """
    timers: list[DueTimer] = []
    by_slot: dict[int, int] = {}
    with channel.meter.sharing(by_slot.items()):
        for number in channel.touched_slots():
            found = channel.state.slot(number).scan(TIMER, timer_bound(now_ms + 1))
            due = [(*timer_parts(suffix, value), number) for suffix, value in found]
            by_slot[number] = len(due)
            timers += due
    return timers


def timers_by_slot(timers: Iterable[DueTimer]) -> list[tuple[int, int]]:
    """Slots, each with how many of these timers it has."""
    return list(Counter(number for *_, number in timers).items())


def timer_tags(timers: Sequence[DueTimer], order: int) -> list[tuple[Tag, int]]:
    """For each timer the tag of its output and the number of its first row.

    It comes after all rows of its batch, by time and, at one time, by bits of the key's hash.
    """
    rest = (0,) * (order - 2)
    bits = key_bits((key for _, key, _ in timers), _KEY_BITS)
    return [
        ((0, TIMER_SEQUENCE + ms, *rest), first << _NUMBER_BITS)
        for (ms, _, _), first in zip(timers, bits, strict=True)
    ]
