"""What lies in a slot and under which bytes: the kinds of entries, and how each is encoded.

A slot is an ordered map. The bytes under which something lies in it are its *suffix*: the slot's
address comes before them in the cache. The first byte is the kind:

    k key                      a key's record
    K digest                   the record of a key that is too long; its value has the key
    t time key                 a timer; all timers of a slot lie in the order of their times
    v l m x                    state variables and their expiries, see `store/variables/layout.py`

A suffix has 1 to `SUFFIX_BYTES_MAX` bytes and does not start with zero: such suffixes are the
cache's own. Times are 8 bytes that sort as the numbers do, the negative ones first.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

__all__ = [
    "CHUNK",
    "ENTRY",
    "EXPIRY",
    "LOWEST",
    "RECORD",
    "RECORD_KINDS",
    "RECORD_LONG",
    "SUFFIX_BYTES_MAX",
    "TIMER",
    "TIME_END",
    "VALUE",
    "count_records",
    "digest",
    "is_timer",
    "record_suffix",
    "record_suffixes",
    "time_bound",
    "timer_bound",
    "timer_ms",
    "timer_parts",
    "timer_suffix",
    "unwrap",
    "wrap",
]

RECORD, RECORD_LONG, TIMER = b"k", b"K", b"t"
VALUE, CHUNK, ENTRY, EXPIRY = b"v", b"l", b"m", b"x"

RECORD_KINDS = (RECORD_LONG, RECORD)
"""What a record's suffix may start with, in the order in which records lie in a slot."""

SUFFIX_BYTES_MAX = 480
"""Of the 511 bytes that LMDB allows; the rest is operator, slot and headroom."""

LOWEST = b"\x01"
"""The least that a suffix may be."""

TIME_END = 9
"""Where the kind and the time end, with which timers and expiries start."""

_DIGEST_BYTES = 32
_TIME_BIAS = 2**63  # makes times unsigned, in the same order
_TIMER_SHORT, _TIMER_LONG = b"\x00", b"\x01"
_RECORD_BYTES = b"".join(RECORD_KINDS)
_length = struct.Struct("<I")
_kind_and_time = struct.Struct(">cQ").pack


def digest(key: bytes) -> bytes:
    """What stands for a key that is too long for a suffix."""
    return hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


def time_bound(kind: bytes, ms: int) -> bytes:
    """What every suffix of a kind and a millisecond starts with: a bound for ordered scans."""
    return _kind_and_time(kind, ms + _TIME_BIAS)


# --- records ----------------------------------------------------------------------------------


def count_records(suffixes: Iterable[bytes]) -> int:
    """How many of the suffixes are those of records: so many keys there are."""
    kinds = _RECORD_BYTES
    return sum([suffix[0] in kinds for suffix in suffixes])


def record_suffix(key: bytes) -> tuple[bytes, bool]:
    """The suffix of a key's state record, and whether its value must be wrapped."""
    if len(key) < SUFFIX_BYTES_MAX:
        return RECORD + key, False
    return RECORD_LONG + digest(key), True


def record_suffixes(keys: Sequence[bytes]) -> tuple[list[bytes], list[int]]:
    """Where the records of keys lie, and which of them have to be wrapped."""
    if max(map(len, keys), default=0) < SUFFIX_BYTES_MAX:
        return [RECORD + key for key in keys], []
    pairs = [record_suffix(key) for key in keys]
    return [suffix for suffix, _ in pairs], [i for i, (_, is_long) in enumerate(pairs) if is_long]


def wrap(key: bytes, value: bytes) -> bytes:
    """A value that lies under a digest: the full key goes with it."""
    return _length.pack(len(key)) + key + value


def unwrap(suffix: bytes, stored: bytes) -> tuple[bytes, bytes]:
    """The full key and the value of a record that lies under this suffix."""
    if suffix[:1] == RECORD:
        return suffix[1:], stored
    end = 4 + int(_length.unpack_from(stored)[0])
    return stored[4:end], stored[end:]


# --- timers -----------------------------------------------------------------------------------


def is_timer(suffix: bytes) -> bool:
    """Whether a timer lies there."""
    return suffix[:1] == TIMER


def timer_suffix(ms: int, key: bytes) -> tuple[bytes, bytes]:
    """The suffix and the value of a timer.

    All timers are of one kind, long keys too, so that the first suffix of that kind is the next
    timer due; the value says whether the key or its digest follows the time.
    """
    if len(key) <= SUFFIX_BYTES_MAX - TIME_END:
        return timer_bound(ms) + key, _TIMER_SHORT
    return timer_bound(ms) + digest(key), _TIMER_LONG + key


def timer_bound(ms: int) -> bytes:
    """What every timer of this millisecond starts with."""
    return _kind_and_time(TIMER, ms + _TIME_BIAS)


def timer_ms(suffix: bytes) -> int:
    """When the timer under this suffix is due."""
    return int.from_bytes(suffix[1:TIME_END], "big") - _TIME_BIAS


def timer_parts(suffix: bytes, stored: bytes) -> tuple[int, bytes]:
    """When the timer is due, and the full key it belongs to."""
    return timer_ms(suffix), suffix[TIME_END:] if stored == _TIMER_SHORT else stored[1:]
