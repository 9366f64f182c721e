"""Which keys occur together: pairs of a row's key here and its key in the operator that reads it.

What a channel gives out is counted in a sketch of bounded size (datasketches' frequent items), so
that its memory does not grow with keys. To keep the way of rows short,

    - a row's key here is known by where the output of a key begins, which costs a note per key;
    - one row in `every`, chosen by its position as if by lot, stands for the others;
    - rows are counted by Arrow and numpy, many at once, and the sketch gets each pair with its
      count. Its items are numbers; what keys they stand for is kept beside it, for those in it.

Some of the rows are held out: they are counted nowhere and reported as they are, so that what is
made of the counts can be judged by rows that it was not made from (`control/locality`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braided.control.locality.statistics import PairCounts
from braided.store.slots.key_codec import KeyCodec

__all__ = ["KeyPairs", "PairReport", "PairSetting", "PairTarget", "can_be_counted"]

Positions = npt.NDArray[np.int64]

_FOLD_ROWS = 32_768
"""Chosen rows that wait to be counted together."""
_CHOOSE_ROWS = 8_192
"""Rows that wait to be chosen from: operators may give out many small tables."""
_HOLD_EVERY = 8
_HELD_MAX = 128
"""Held-out rows that a report has."""
_ENTRY_BYTES = 64
"""What an entry of the sketch takes, with its number and its part of the keys beside it."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SIMPLE = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date32,
    pa.types.is_timestamp,
    pa.types.is_decimal,
)


def can_be_counted(schema: pa.Schema) -> bool:
    """Whether keys of such columns can be: not if they have parts of their own."""
    return all(any(is_kind(field.type) for is_kind in _SIMPLE) for field in schema)


@dataclass(frozen=True)
class PairTarget:
    """An operator that reads the output, and which of the output's columns are its key."""

    operator: str
    columns: tuple[int, ...]
    schema: pa.Schema


@dataclass(frozen=True)
class PairSetting:
    """What is counted, and how closely."""

    targets: tuple[PairTarget, ...]
    every: int = 16
    sketch_bytes: int = 128 << 10
    report_bytes: int = 16 << 10


class PairReport(msgspec.Struct, frozen=True, array_like=True):
    """The most frequent pairs of a channel and an operator that it feeds.

    Pairs are numbers of keys here and there, two 32-bit numbers each, and so are the held-out rows.
    """

    operator: str
    here: tuple[bytes, ...]
    there: tuple[bytes, ...]
    pairs: bytes
    counts: bytes
    total: int
    error: int
    held: bytes
    held_weight: float

    def decode(self) -> PairCounts:
        return PairCounts(
            self.here,
            self.there,
            np.frombuffer(self.pairs, "<u4").astype(np.int64).reshape(-1, 2),
            np.frombuffer(self.counts, "<u4").astype(np.float64),
            float(self.total),
            float(self.error),
            np.frombuffer(self.held, "<u4").astype(np.int64).reshape(-1, 2),
            self.held_weight,
        )


class KeyPairs:
    """Counts the pairs of one channel in one batch."""

    def __init__(self, setting: PairSetting) -> None:
        self._every = np.uint64(max(1, setting.every))
        self._begins: list[int] = []
        self._keys: list[bytes] = []
        self._targets = [_TargetPairs(target, setting) for target in setting.targets]
        self._columns = sorted({i for target in setting.targets for i in target.columns})
        self._waiting: list[list[pa.Array]] = []
        self._waiting_rows = 0
        self._position = 0

    def opened(self, key: bytes, position: int) -> None:
        """Output from this position on is that of this key."""
        if self._begins and self._begins[-1] == position:
            self._keys[-1] = key  # the one before has given out nothing, as most may
            return
        self._begins.append(position)
        self._keys.append(key)

    def emitted(self, chunk: pa.RecordBatch, position: int) -> None:
        """Output that leaves, and where it begins: where that before it ended."""
        if not self._waiting:
            self._position = position
        self._waiting.append([chunk.column(i) for i in self._columns])
        self._waiting_rows += chunk.num_rows
        if self._waiting_rows >= _CHOOSE_ROWS:
            self._choose()

    def _choose(self) -> None:
        """Takes some of the rows that wait, and lets go of the others."""
        rows, position = self._waiting_rows, self._position
        if not rows:
            return
        at = np.arange(position, position + rows, dtype=np.uint64)
        with np.errstate(over="ignore"):
            lot = (at * _MIX) >> np.uint64(40)
        chosen = np.flatnonzero(lot % self._every == 0)
        begins = np.array(self._begins, dtype=np.int64)
        if chosen.size and begins.size:
            owner = np.searchsorted(begins, chosen + position, side="right") - 1
            keys = list(map(self._keys.__getitem__, owner.tolist()))
            is_held = (lot[chosen] // self._every) % np.uint64(_HOLD_EVERY) == 0
            take = pa.array(chosen)
            taken = {
                i: pa.concat_arrays([part[n] for part in self._waiting]).take(take)
                for n, i in enumerate(self._columns)
            }
            for target in self._targets:
                target.add(keys, [taken[i] for i in target.columns], is_held)
        # Whose output is wholly out is not needed any more; the last key may go on.
        done = int(np.searchsorted(begins, position + rows, side="right")) - 1
        del self._begins[: max(0, done)], self._keys[: max(0, done)]
        self._waiting, self._waiting_rows = [], 0

    def reports(self) -> tuple[PairReport, ...]:
        """What was counted, for the report of the channel."""
        self._choose()
        found = (target.report() for target in self._targets)
        return tuple(report for report in found if report is not None)


class _TargetPairs:
    """The pairs with the keys of one operator."""

    def __init__(self, target: PairTarget, setting: PairSetting) -> None:
        self.columns = target.columns
        self._operator = target.operator
        self._codec = KeyCodec(target.schema)
        self._report_bytes = setting.report_bytes
        size = max(8, setting.sketch_bytes // _ENTRY_BYTES).bit_length() - 1
        self._sketch = _sketch(size)
        self._room = 1 << size
        self._numbers: dict[bytes, int] = {}
        self._keys: list[bytes] = []
        self._here: list[bytes] = []
        self._there: list[list[pa.Array]] = []
        self._is_held: list[npt.NDArray[np.bool_]] = []
        self._held: list[tuple[int, int]] = []
        self._held_total = 0
        self._total = 0
        self._error_before = 0

    def add(self, here: list[bytes], there: list[pa.Array], is_held: npt.NDArray[np.bool_]) -> None:
        self._here += here
        self._there.append(there)
        self._is_held.append(is_held)
        if len(self._here) >= _FOLD_ROWS:
            self._fold()

    def _fold(self) -> None:
        """Counts what waits, and tells the sketch."""
        if not self._here:
            return
        encoded = pa.array(self._here, pa.binary()).dictionary_encode()
        here = encoded.indices.to_numpy().astype(np.int64)
        here_keys = encoded.dictionary.to_pylist()
        columns = [
            pa.concat_arrays([part[i] for part in self._there]) for i in range(len(self.columns))
        ]
        there, rows = _codes(columns)
        there_keys = self._codec.encode_batch([column.take(rows) for column in columns])
        is_held = np.concatenate(self._is_held)
        self._here, self._there, self._is_held = [], [], []
        first = np.array([self._number(key) for key in here_keys], dtype=np.int64)
        second = np.array([self._number(key) for key in there_keys], dtype=np.int64)
        self._hold(first[here[is_held]], second[there[is_held]])
        counted = here[~is_held] * len(there_keys) + there[~is_held]
        codes, counts = np.unique(counted, return_counts=True)
        pairs = (first[codes // len(there_keys)] << 32) | second[codes % len(there_keys)]
        self._total += int(counted.size)
        update = self._sketch.update
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            update(pair, count)
        if len(self._keys) > 4 * self._room:
            self._forget()

    def _number(self, key: bytes) -> int:
        number = self._numbers.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
        return number

    def _hold(self, here: Positions, there: Positions) -> None:
        """Keeps an even part of the held-out rows: half of them whenever they are too many."""
        self._held_total += here.size
        self._held += zip(here.tolist(), there.tolist(), strict=True)
        while len(self._held) > 2 * _HELD_MAX:
            self._held = self._held[::2]

    def _forget(self) -> None:
        """Lets go of keys that are in no pair of the sketch."""
        items = [(pair, weight) for pair, weight, _ in self._kept()]
        held, keys = self._held, self._keys
        error = self._error()
        self._numbers, self._keys = {}, []
        self._held = [(self._number(keys[a]), self._number(keys[b])) for a, b in held]
        renewed = _sketch(self._room.bit_length() - 1)
        for pair, weight in items:
            here, there = self._number(keys[pair >> 32]), self._number(keys[pair & 0xFFFFFFFF])
            renewed.update((here << 32) | there, weight)
        self._sketch = renewed
        self._error_before = error

    def _kept(self) -> list[tuple[int, int, int]]:
        """The pairs in the sketch: what was counted of them at least, and at most."""
        from datasketches import frequent_items_error_type

        found = self._sketch.get_frequent_items(frequent_items_error_type.NO_FALSE_NEGATIVES)
        return [(int(item), int(low), int(high)) for item, _, low, high in found]

    def _error(self) -> int:
        """By how much a count may be too low: of one that is not there, all of it."""
        return int(self._sketch.get_upper_bound(-1)) + self._error_before

    def report(self) -> PairReport | None:
        self._fold()
        if not self._total and not self._held:
            return None
        held = self._held[:: max(1, -(-len(self._held) // _HELD_MAX))]
        numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
        held_pairs = [_renumbered(pair, numbers) for pair in held]
        room = self._report_bytes - sum(len(self._keys[n]) + 2 for each in numbers for n in each)
        pairs: list[tuple[int, int]] = []
        counts: list[int] = []
        error = self._error()
        kept = sorted((each for each in self._kept() if each[1] > 0), key=lambda e: (-e[1], e[0]))
        for item, low, _ in kept:
            both = item >> 32, item & 0xFFFFFFFF
            new = [n for n, known in zip(both, numbers, strict=True) if n not in known]
            room -= 12 + sum(len(self._keys[n]) + 2 for n in new)
            if room < 0:
                error = max(error, low + error)  # what is left out has at most as much
                break
            pairs.append(_renumbered(both, numbers))
            counts.append(low)
        return PairReport(
            self._operator,
            tuple(self._keys[n] for n in numbers[0]),
            tuple(self._keys[n] for n in numbers[1]),
            np.array(pairs, dtype="<u4").tobytes(),
            np.array(counts, dtype="<u4").tobytes(),
            self._total,
            error,
            np.array(held_pairs, dtype="<u4").tobytes(),
            self._held_total / max(1, len(held)),
        )


def _sketch(size: int) -> Any:
    # Imported where it is used: most tasks count no pairs.
    from datasketches import frequent_items_sketch

    return frequent_items_sketch(size)


def _renumbered(
    pair: tuple[int, int], numbers: tuple[dict[int, int], dict[int, int]]
) -> tuple[int, int]:
    first, second = numbers
    return first.setdefault(pair[0], len(first)), second.setdefault(pair[1], len(second))


def _codes(columns: Sequence[pa.Array]) -> tuple[Positions, pa.Array]:
    """A number for the values of each row, equal for equal ones, and a row of each number."""
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        part = encoded.indices.to_numpy().astype(np.int64)
        # Renumbered after each column, so that products stay small.
        _, code = np.unique(code * len(encoded.dictionary) + part, return_inverse=True)
    _, first = np.unique(code, return_index=True)
    return code.astype(np.int64), pa.array(first)
