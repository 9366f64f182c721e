"""Operators whose keys can be split, a plain Python model of them, and how to split a key."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

import braided
from braided.api.query import ElasticQuery
from braided.control.routing.table import Pin
from braided.store.slots.key_codec import KeyCodec

__all__ = [
    "KEYS",
    "SCHEMA",
    "SLOTS",
    "Ledger",
    "LedgerOfBatches",
    "LedgerOfRows",
    "Running",
    "WaitingLedger",
    "WholeLedger",
    "ask",
    "encoded",
    "expected",
]

SCHEMA = "k string, v bigint, seq bigint"
SLOTS = 16
LONG = "long" * 200
KEYS = [None, "a", "b", "c", LONG]


class Ledger(braided.Operator, abstract=True):
    """All kinds of state that can be merged; what it gives out does not depend on any of it."""

    count: int = 0
    total: float = 0.0
    least: int | None = None
    seen: dict[int, int] = {}  # noqa: RUF012

    def take(self, k: str | None, v: int, seq: int) -> Iterator[tuple[Any, ...]]:
        self.count += 1
        self.total += v
        self.least = v if self.least is None else min(self.least, v)
        self.seen[v] = self.seen.get(v, 0) + 1
        if v % 3:
            yield k, v, seq

    def merge(self, other: Ledger) -> None:
        assert self.key == other.key and other.least is not None
        self.count += other.count
        self.total += other.total
        self.least = other.least if self.least is None else min(self.least, other.least)
        for value, count in other.seen.items():
            self.seen[value] = self.seen.get(value, 0) + count


class LedgerOfRows(Ledger):
    def onRow(self, row: Any) -> Iterator[tuple[Any, ...]]:
        return self.take(*row)


class LedgerOfBatches(Ledger):
    def onBatch(self, rows: pa.Table) -> Iterator[tuple[Any, ...]]:
        for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            yield from self.take(*row)


class WholeLedger(LedgerOfRows):
    """As it was before it could merge."""

    merge = None  # type: ignore[assignment]


class WaitingLedger(LedgerOfRows):
    """Two milliseconds of work a row, on any machine."""

    def onRow(self, row: Any) -> Iterator[tuple[Any, ...]]:
        time.sleep(0.002)
        return super().onRow(row)


class Running(braided.Operator):
    """Comes after, and minds the order of rows."""

    total: int = 0

    def onRow(self, row: Any) -> Iterator[tuple[Any, ...]]:
        self.total = self.total * 3 % 1_000_003 + row.v
        yield row.k, self.total, row.seq


def encoded(key: str | None) -> bytes:
    (made,) = KeyCodec(pa.schema([("k", pa.string())])).encode_batch([pa.array([key], pa.string())])
    return made


def ask(query: ElasticQuery, key: str | None, shares: tuple[int, ...], slot: int | None) -> None:
    """Splits a key, or makes it whole; it is pinned to a slot, or at home."""
    opened = query._opened
    hashes = opened.control._hashes.of_key("ledger", encoded(key))
    assert hashes is not None
    home = hashes[0] % SLOTS if slot is None else slot
    opened.commands.propose_pin("ledger", Pin(encoded(key), *hashes, home, shares))


def expected(rows: list[tuple[Any, ...]]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The fields of Ledger by key, and what Running gives out by key."""
    state: dict[Any, Any] = {}
    output: dict[Any, list[Any]] = defaultdict(list)
    for k, v, seq in rows:
        fields = state.setdefault((k,), {"count": 0, "total": 0.0, "least": v, "seen": {}})
        fields["count"] += 1
        fields["total"] += v
        fields["least"] = min(fields["least"], v)
        fields["seen"][v] = fields["seen"].get(v, 0) + 1
        if v % 3:
            before = output[k][-1][1] if output[k] else 0
            output[k].append((k, before * 3 % 1_000_003 + v, seq))
    return state, dict(output)
