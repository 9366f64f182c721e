"""Sets of slots: as numbers in memory, as short text and bytes on the way and on disk.

A set is written in the shorter of two forms. The bitmap is good for an operator of a few hundred
slots, and is the only form that earlier versions knew. The steps from one slot to the next are good
for a channel's share of many thousand slots: a byte or two for each that is there, nothing for the
others.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["SlotNumbers", "decode_slots", "encode_slots", "slots_from_steps", "steps_of"]

SlotNumbers = npt.NDArray[np.int32]
"""Slots, ascending; never written to."""

_WIDTHS = {width: np.dtype(f"<u{width}") for width in (1, 2, 4)}
_STEPS = "~"  # what text begins with that holds steps: no base64 does


def encode_slots(slots: Iterable[int] | SlotNumbers) -> str:
    """Slot numbers as text, the shorter of `bitmap` and `steps`; in any order, each once."""
    if not isinstance(slots, np.ndarray):
        slots = np.array(sorted(set(slots)), dtype=np.int32)
    bitmap_bytes = int(slots[-1]) // 8 + 1 if slots.size else 0
    if bitmap_bytes > slots.size:
        steps = steps_of(slots)
        if len(steps) < bitmap_bytes:
            return _STEPS + base64.b64encode(steps).decode()
    bits = np.zeros(bitmap_bytes * 8, dtype=np.uint8)
    bits[slots] = 1
    # The lowest slot is the lowest bit of the first byte.
    return base64.b64encode(np.packbits(bits, bitorder="little").tobytes()).decode()


# A channel has the same slots batch after batch: they are decoded once, and kept once.
@functools.lru_cache(maxsize=1024)
def decode_slots(text: str) -> SlotNumbers:
    """The slots of a text, ascending. Equal texts give, as a rule, the same array."""
    if text.startswith(_STEPS):
        return slots_from_steps(binascii.a2b_base64(text[1:]))
    packed = np.frombuffer(binascii.a2b_base64(text), dtype=np.uint8)
    return _sealed(np.flatnonzero(np.unpackbits(packed, bitorder="little")).astype(np.int32))


def steps_of(slots: SlotNumbers) -> bytes:
    """How far it is from each slot to the next, in one, two or four bytes; the first byte says."""
    steps = slots.copy()
    steps[1:] -= slots[:-1]
    far = int(steps.max(initial=0))
    width = 1 if far < 1 << 8 else 2 if far < 1 << 16 else 4
    return bytes([width]) + steps.astype(f"<u{width}").tobytes()


def slots_from_steps(data: bytes) -> SlotNumbers:
    """The slots whose steps `steps_of` has written."""
    steps = np.frombuffer(data, _WIDTHS[data[0]], offset=1).astype(np.int32)
    return _sealed(np.add.accumulate(steps, out=steps))


def _sealed(slots: SlotNumbers) -> SlotNumbers:
    slots.setflags(write=False)
    return slots
