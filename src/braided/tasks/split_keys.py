"""Split keys in a task: the state that they had before the batch, where this channel has it."""

from __future__ import annotations

from braided.store.slots.layout import record_suffix, unwrap
from braided.store.slots.slot import SlotState
from braided.tasks.channel import Channel
from braided.tasks.reports import KeyRecord

__all__ = ["split_keys_of", "whole_records"]


def split_keys_of(channel: Channel) -> frozenset[bytes]:
    """Keys whose rows are dealt out to several slots."""
    return frozenset(each.key for each in channel.batch.split.get(channel.name, ()))


def whole_records(channel: Channel) -> tuple[KeyRecord, ...]:
    """The state, before the batch, of the split keys that this channel has it of."""
    here = [
        each for each in channel.batch.split.get(channel.name, ()) if each.channel == channel.number
    ]
    channel.state.open_slots({each.slot for each in here})
    return tuple(
        KeyRecord(each.key, each.slot, _stored(channel.state.slot(each.slot), each.key))
        for each in here
    )


def _stored(slot: SlotState, key: bytes) -> bytes | None:
    suffix, _ = record_suffix(key)
    raw = slot.get(suffix)
    return None if raw is None else unwrap(suffix, raw)[1]
