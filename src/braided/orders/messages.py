"""What is said on a line: orders from the driver, words from tasks. Each is a few bytes of msgpack.

driver → worker   `StopOrder`, `CutOrder`, `ForgetOrder`; `CaughtUp` after what was ordered before
worker → driver   `CutWish`, which a `CutOrder` or a `ForgetOrder` answers, and `TaskWord`
"""

from __future__ import annotations

import msgspec

__all__ = [
    "CaughtUp",
    "CutOrder",
    "CutWish",
    "ForgetOrder",
    "Order",
    "StopOrder",
    "TaskWord",
    "Word",
    "encode",
    "order_of",
    "word_of",
]


class StopOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="stop"):
    """Every task of a try is to stop at its next opportunity.

    `spares_later`: but for those that begin after this, which only have to know of it.
    """

    token: str
    spares_later: bool = False


class CutOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="cut"):
    """A channel of a try ends after so many rows, in each of its attempts."""

    token: str
    operator: str
    channel: int
    rows: int


class ForgetOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="forget"):
    """A try is over, and nothing more is ordered or agreed for it."""

    token: str


class CaughtUp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="caught up"):
    """A worker that has just connected has been told all that was ordered before."""


class CutWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="wish"):
    """An attempt would stop after so many rows, and asks for the number that counts."""

    token: str
    operator: str
    channel: int
    rows: int


class TaskWord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="word"):
    """How far an attempt is."""

    token: str
    operator: str
    channel: int
    attempt: str
    stage: int
    rows: int
    """Done so far."""
    seconds: float
    """Worked so far."""
    ended: bool


Order = StopOrder | CutOrder | ForgetOrder | CaughtUp
Word = CutWish | TaskWord

_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_words: msgspec.msgpack.Decoder[Word] = msgspec.msgpack.Decoder(Word)


def encode(message: Order | Word) -> bytes:
    return msgspec.msgpack.encode(message)


def order_of(data: bytes) -> Order:
    """The order that a worker received; `msgspec.DecodeError` if it is none."""
    return _orders.decode(data)


def word_of(data: bytes) -> Word:
    """The word that the driver received; `msgspec.DecodeError` if it is none."""
    return _words.decode(data)
