"""Where the state variables of a key lie in its slot.

A key's record (`k`, see keys.py) has its timers and a cell per variable. What may be large lies
beside it, each piece under a suffix of its own, so that a piece can be read and written alone:

    v key variable             a value that is too long for the record
    l key variable number      a piece of a list: what was appended at once
    m key variable user-key    an entry of a map
    x time place               when what lies at a place, or would if it were longer, may expire;
                               the value is the key

The encoding of a key says where it ends, so no key is the beginning of another. Long keys have
their digest in place of themselves.
"""

from __future__ import annotations

import hashlib
import struct

__all__ = [
    "CHUNK",
    "ENTRY",
    "EXPIRY",
    "USER_KEY_BYTES_MAX",
    "VALUE",
    "chunk_place",
    "expiry_bound",
    "expiry_parts",
    "expiry_place",
    "is_digest",
    "key_part",
    "user_part",
    "variable_of",
    "variable_place",
    "variable_prefix",
]

VALUE, CHUNK, ENTRY, EXPIRY = b"v", b"l", b"m", b"x"
_DIGESTED = b"\xc1"  # begins no msgpack value
_KEY_BYTES_MAX = 160
USER_KEY_BYTES_MAX = 200
_DIGEST_BYTES = 32
_variable = struct.Struct(">H").pack
_number = struct.Struct(">Q").pack


def key_part(key: bytes) -> bytes:
    """What stands for a key in the suffixes of its pieces."""
    if len(key) <= _KEY_BYTES_MAX:
        return key
    return _DIGESTED + hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()


def user_part(user_key: bytes) -> bytes:
    """What stands for the key of a map's entry in its suffix."""
    if len(user_key) <= USER_KEY_BYTES_MAX:
        return user_key
    return _DIGESTED + hashlib.blake2b(user_key, digest_size=_DIGEST_BYTES).digest()


def is_digest(part: bytes) -> bool:
    return part[:1] == _DIGESTED


def variable_place(kind: bytes, part: bytes, variable: int) -> bytes:
    """A value's suffix, and what the suffixes of a variable's pieces start with."""
    return kind + part + _variable(variable)


def chunk_place(prefix: bytes, number: int) -> bytes:
    return prefix + _number(number)


def expiry_bound(ms: int) -> bytes:
    """What every expiry of this millisecond starts with."""
    return EXPIRY + _number(ms + (1 << 63))


def expiry_place(ms: int, place: bytes) -> bytes:
    """Where it is noted that what lies at `place` may expire then."""
    return expiry_bound(ms) + place


def expiry_parts(noted: bytes) -> bytes:
    """The place that was noted there."""
    return noted[9:]


def variable_prefix(place: bytes, key: bytes) -> bytes:
    """What the suffixes of a variable start with, from that of a piece of the key's."""
    return place[: 1 + len(key_part(key)) + 2]


def variable_of(place: bytes, key: bytes) -> int:
    """The variable that what lies at this place, a piece of the key's, belongs to."""
    begin = 1 + len(key_part(key))
    return int.from_bytes(place[begin : begin + 2], "big")
