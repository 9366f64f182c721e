"""The suffixes of state variables: where in its slot what a key keeps in them lies.

A key's record (`store/slots/layout.py`) has its timers and a cell per variable. What may be large
lies beside it, each piece under a suffix of its own, so that it can be read and written alone:

    v key variable             a value that is too long for the record
    l key variable number      a piece of a list: what was appended at once
    m key variable user-key    an entry of a map
    x time suffix              when what lies under a suffix, or would if it were longer, may
                               expire; the value is the key

The encoding of a key says where it ends, so no key is the beginning of another. Long keys are
represented by their digests.
"""

from __future__ import annotations

import struct

from braided.store.slots.layout import EXPIRY, TIME_END, digest, time_bound

__all__ = [
    "USER_KEY_BYTES_MAX",
    "chunk_suffix",
    "expiring_suffix",
    "expiry_bound",
    "expiry_suffix",
    "is_digest",
    "key_part",
    "user_part",
    "variable_of",
    "variable_prefix",
    "variable_suffix",
]

_DIGESTED = b"\xc1"  # begins no msgpack value
_KEY_BYTES_MAX = 160
USER_KEY_BYTES_MAX = 200
_variable = struct.Struct(">H").pack
_number = struct.Struct(">Q").pack


def key_part(key: bytes) -> bytes:
    """What stands for a key in the suffixes of its pieces."""
    if len(key) <= _KEY_BYTES_MAX:
        return key
    return _DIGESTED + digest(key)


def user_part(user_key: bytes) -> bytes:
    """What stands for the key of a map's entry in its suffix."""
    if len(user_key) <= USER_KEY_BYTES_MAX:
        return user_key
    return _DIGESTED + digest(user_key)


def is_digest(part: bytes) -> bool:
    """Whether a digest stands for the key of a map's entry, which then lies in its value."""
    return part[:1] == _DIGESTED


def variable_suffix(kind: bytes, part: bytes, variable: int) -> bytes:
    """A value's suffix, and what the suffixes of a variable's pieces start with."""
    return kind + part + _variable(variable)


def chunk_suffix(prefix: bytes, number: int) -> bytes:
    """The suffix of a piece of a list, by what the suffixes of the variable start with."""
    return prefix + _number(number)


def expiry_bound(ms: int) -> bytes:
    """What every expiry of this millisecond starts with."""
    return time_bound(EXPIRY, ms)


def expiry_suffix(ms: int, suffix: bytes) -> bytes:
    """Where it is noted that what lies under `suffix` may expire then."""
    return expiry_bound(ms) + suffix


def expiring_suffix(note: bytes) -> bytes:
    """The suffix of what may expire, from that of the note."""
    return note[TIME_END:]


def variable_prefix(suffix: bytes, key: bytes) -> bytes:
    """What the suffixes of a variable start with, from that of a piece of the key's."""
    return suffix[: 1 + len(key_part(key)) + 2]


def variable_of(suffix: bytes, key: bytes) -> int:
    """The variable that a piece of the key's belongs to."""
    begin = 1 + len(key_part(key))
    return int.from_bytes(suffix[begin : begin + 2], "big")
