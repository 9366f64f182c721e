"""Which keys occur together: pairs of a row's key here and its key in the operator that reads it.

What a channel gives out is counted in a sketch of bounded size (`tasks/frequent_pairs.py`), so that
its memory does not grow with keys. To keep the way of rows short,

    - a row's key here is known by where the output of a key begins, which costs a note per key;
    - of every so many blocks of a few rows one, chosen as if by lot, stands for the others. Which
      these are is known by their positions, before anything is made of any row;
    - rows are counted by Arrow and numpy, many at once, as numbers. Only keys of pairs that are
      frequent among them become Python objects.

Some of the rows are held out: they are counted nowhere and reported as they are, so that what is
made of the counts can be judged by rows that it was not made from (`control/locality`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from braided.control.locality.statistics import PairCounts
from braided.store.slots.key_codec import KeyCodec
from braided.tasks.frequent_pairs import FrequentPairs

__all__ = ["KeyPairs", "PairReport", "PairSetting", "PairTarget", "can_be_counted"]

Positions = npt.NDArray[np.int64]

_FOLD_ROWS = 32_768
"""Chosen rows that wait to be counted together."""
_CHOOSE_ROWS = 32_768
"""Rows that leave before some of them are chosen: operators may give out many small tables."""
_BLOCK_ROWS = 8
"""Rows side by side that are chosen together, so that most small tables are not looked at."""
_STRETCHES = 256
"""For how many stretches of rows lots are drawn at a time."""
_HOLD_EVERY = 8
_HELD_MAX = 128
"""Held-out rows that a report has."""
_ENTRY_BYTES = 64
"""What an entry of the sketch takes, with its number and its part of the keys beside it."""
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Steps of splitmix64: by how much it shifts, and what it multiplies by."""
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


class _Leaving(Protocol):
    """What knows how many rows have left."""

    rows_out: int


class KeyPairs:
    """Counts the pairs of one channel in one batch."""

    def __init__(self, setting: PairSetting, batch: int = 0) -> None:
        """`batch`: others are chosen in another one, or keys would always be passed over."""
        self._lots = _Lots(max(1, setting.every), batch)
        # Never empty: output before that of the first key there is none.
        self._begins: list[int] = [-1]
        self._keys: list[bytes] = [b""]
        self._targets = [_TargetPairs(target, setting) for target in setting.targets]
        self._columns = sorted({i for target in setting.targets for i in target.columns})
        self._position = 0  # before which all that was to be chosen is
        self._next = 0  # before which nothing more is
        self._chunks: list[tuple[int, int]] = []  # of those that wait: position and rows
        self._waiting: list[list[pa.Array]] = [[] for _ in self._columns]
        self._chosen = _Chosen(len(self._columns))

    def opened(self, key: bytes, position: int) -> None:
        """Output from this position on is that of this key."""
        if self._begins[-1] == position:
            self._keys[-1] = key  # the one before has given out nothing, as most may
            return
        self._begins.append(position)
        self._keys.append(key)

    def noting(self, leaving: _Leaving, waiting: Sized) -> Callable[[bytes], None]:
        """`opened` for output that goes on from what has left and what waits to: it is called for
        every key, so it looks nothing up that it can have at hand.
        """
        begins, keys = self._begins, self._keys
        begin, note = begins.append, keys.append

        def opened(key: bytes) -> None:
            position = leaving.rows_out + len(waiting)
            if begins[-1] == position:
                keys[-1] = key
                return
            begin(position)
            note(key)

        return opened

    def emitted(self, chunk: pa.RecordBatch, position: int) -> None:
        """Output that leaves, and where it begins: where that before it ended."""
        rows = chunk.num_rows
        end = position + rows
        if end > self._next:
            self._chunks.append((position, rows))
            for waiting, i in zip(self._waiting, self._columns, strict=True):
                waiting.append(chunk.column(i))
            self._next = self._lots.block_after(end)
        if end - self._position >= _CHOOSE_ROWS:
            self._choose(end)

    def _choose(self, end: int) -> None:
        """Takes some of the rows that have left by now, and lets go of the others."""
        begins = np.array(self._begins, dtype=np.int64)
        if self._chunks:
            chunks = np.array(self._chunks, dtype=np.int64)
            first, rows = chunks[:, 0], chunks[:, 1]
            at, is_held = self._lots.between(int(first[0]), int(first[-1] + rows[-1]))
            if at.size:
                # All of them are in these chunks, which are side by side once they are one array.
                of_chunk = np.searchsorted(first, at, side="right") - 1
                take = pa.array((np.cumsum(rows) - rows - first)[of_chunk] + at)
                owner = np.searchsorted(begins, at, side="right") - 1
                self._chosen.add(
                    *_runs(owner, self._keys),
                    is_held,
                    [pa.concat_arrays(parts).take(take) for parts in self._waiting],
                )
            self._chunks, self._waiting = [], [[] for _ in self._columns]
        # Whose output is wholly out is not needed any more; the last key may go on.
        done = int(np.searchsorted(begins, end, side="right")) - 1
        del self._begins[: max(0, done)], self._keys[: max(0, done)]
        self._position = end
        if self._chosen.rows >= _FOLD_ROWS:
            self._fold()

    def _fold(self) -> None:
        """Counts what was chosen."""
        chosen, self._chosen = self._chosen, _Chosen(len(self._columns))
        if not chosen.rows:
            return
        here, keys = chosen.keys()
        is_held = np.concatenate(chosen.is_held)
        columns = dict(zip(self._columns, map(pa.concat_arrays, chosen.there), strict=True))
        for target in self._targets:
            target.add(here, keys, [columns[i] for i in target.columns], is_held)

    def reports(self) -> tuple[PairReport, ...]:
        """What was counted, for the report of the channel."""
        self._choose(self._next)
        self._fold()
        found = (target.report() for target in self._targets)
        return tuple(report for report in found if report is not None)


class _Chosen:
    """Rows that wait to be counted: numbers of their keys here, and their columns."""

    def __init__(self, columns: int) -> None:
        self.rows = 0
        self.is_held: list[npt.NDArray[np.bool_]] = []
        self.there: list[list[pa.Array]] = [[] for _ in range(columns)]
        self._keys: list[bytes] = []
        self._numbers: list[Positions] = []

    def add(
        self,
        numbers: Positions,
        keys: list[bytes],
        is_held: npt.NDArray[np.bool_],
        there: Sequence[pa.Array],
    ) -> None:
        self._numbers.append(numbers + len(self._keys))
        self._keys += keys
        self.is_held.append(is_held)
        for parts, part in zip(self.there, there, strict=True):
            parts.append(part)
        self.rows += numbers.size

    def keys(self) -> tuple[Positions, pa.Array]:
        """The number of each row's key, and the keys by number, each of them once."""
        # A key comes again where rows are cut, and when its timer fires.
        encoded = pa.array(self._keys, pa.binary()).dictionary_encode()
        number = encoded.indices.to_numpy().astype(np.int64)
        return number[np.concatenate(self._numbers)], encoded.dictionary


class _TargetPairs:
    """The pairs with the keys of one operator."""

    def __init__(self, target: PairTarget, setting: PairSetting) -> None:
        self.columns = target.columns
        self._operator = target.operator
        self._codec = KeyCodec(target.schema)
        self._report_bytes = setting.report_bytes
        self._room = 1 << max(8, setting.sketch_bytes // _ENTRY_BYTES).bit_length() - 1
        self._frequent = FrequentPairs(self._room)
        self._numbers: dict[bytes, int] = {}  # in their order
        self._held: npt.NDArray[np.int64] = np.zeros((0, 2), dtype=np.int64)
        self._held_total = 0

    def add(
        self,
        here: Positions,
        keys: pa.Array,
        columns: Sequence[pa.Array],
        is_held: npt.NDArray[np.bool_],
    ) -> None:
        """Counts rows whose keys here have these numbers among `keys`."""
        there, rows = _codes(columns)
        held = self._hold(is_held)
        counted = ~is_held
        codes, counts = np.unique(here[counted] * rows.size + there[counted], return_counts=True)
        kept = self._frequent.choose(counts)
        codes, counts = codes[kept], counts[kept]
        # Of all others nobody has to know by which keys they were.
        first = np.concatenate([codes // rows.size, here[held]])
        second = np.concatenate([codes % rows.size, there[held]])
        pairs = self._numbered(first, second, keys, columns, rows)
        self._frequent.add((pairs[: codes.size, 0] << 32) | pairs[: codes.size, 1], counts)
        self._held = np.concatenate([self._held, pairs[codes.size :]])
        if len(self._numbers) > 4 * self._room:
            self._forget()

    def _numbered(
        self,
        here: Positions,
        there: Positions,
        keys: pa.Array,
        columns: Sequence[pa.Array],
        rows: Positions,
    ) -> Positions:
        """Pairs by the numbers that their keys have for as long as there are such pairs."""
        here_codes, here = np.unique(here, return_inverse=True)
        there_codes, there = np.unique(there, return_inverse=True)
        at = pa.array(rows[there_codes])
        here_keys = keys.take(pa.array(here_codes)).to_pylist()
        there_keys = self._codec.encode_batch([column.take(at) for column in columns])
        numbers, number = self._numbers, self._numbers.setdefault
        first = np.array([number(key, len(numbers)) for key in here_keys], dtype=np.int64)
        second = np.array([number(key, len(numbers)) for key in there_keys], dtype=np.int64)
        return np.stack([first[here], second[there]], axis=1)

    def _hold(self, is_held: npt.NDArray[np.bool_]) -> Positions:
        """Which rows are kept as they are: an even part of those that are held out, half of them
        whenever they are too many.
        """
        at = np.flatnonzero(is_held)
        self._held_total += at.size
        before = len(self._held)
        kept = np.arange(before + at.size)
        while kept.size > 2 * _HELD_MAX:
            kept = kept[::2]
        self._held = self._held[kept[kept < before]]
        return at[kept[kept >= before] - before]

    def _forget(self) -> None:
        """Lets go of keys that are in no pair of the sketch."""
        keys, kept = list(self._numbers), self._frequent.pairs
        pairs = np.concatenate([np.stack([kept >> 32, kept & 0xFFFFFFFF], axis=1), self._held])
        known, number = np.unique(pairs, return_inverse=True)
        self._numbers = {keys[n]: new for new, n in enumerate(known.tolist())}
        pairs = number.reshape(-1, 2).astype(np.int64)
        self._frequent.renumbered((pairs[: kept.size, 0] << 32) | pairs[: kept.size, 1])
        self._held = pairs[kept.size :]

    def report(self) -> PairReport | None:
        frequent = self._frequent
        if not frequent.total and not len(self._held):
            return None
        held = self._held[:: max(1, -(-len(self._held) // _HELD_MAX))]
        order = np.lexsort((frequent.pairs, -frequent.counts))
        most, counts = frequent.pairs[order], frequent.counts[order]
        pairs = np.concatenate([held, np.stack([most >> 32, most & 0xFFFFFFFF], axis=1)])
        keys = list(self._numbers)
        # What each pair takes with the keys that none before it has.
        size = np.array(list(map(len, keys)), dtype=np.int64) + 2
        takes = np.full(len(pairs), 12)
        for column in pairs.T:
            known, first = np.unique(column, return_index=True)
            takes[first] += size[known]
        takes[: len(held)] -= 12
        fit = int(np.searchsorted(np.cumsum(takes), self._report_bytes, side="right"))
        fit = max(fit, len(held)) - len(held)
        # What is left out has at most as much.
        error = frequent.error + (int(counts[fit]) if fit < counts.size else 0)
        here, of_here = _by_coming(pairs[: len(held) + fit, 0])
        there, of_there = _by_coming(pairs[: len(held) + fit, 1])
        both = np.stack([here, there], axis=1).astype("<u4")
        return PairReport(
            self._operator,
            tuple(keys[n] for n in of_here),
            tuple(keys[n] for n in of_there),
            both[len(held) :].tobytes(),
            counts[:fit].astype("<u4").tobytes(),
            frequent.total,
            error,
            both[: len(held)].tobytes(),
            self._held_total / max(1, len(held)),
        )


class _Lots:
    """Which rows of a batch are chosen: of each stretch of blocks one block, by lot. A row is or is
    not, however rows are cut into chunks.
    """

    def __init__(self, every: int, batch: int) -> None:
        self._blocks = every
        self._rows = every * _BLOCK_ROWS
        self._seed = batch % (1 << 31) << 32
        self._first = -_STRETCHES  # the stretch that the blocks at hand begin with
        self._at_hand: list[int] = []

    def block_after(self, position: int) -> int:
        """Where the first chosen block begins that goes on after a position, or begins there."""
        number = position // self._rows
        block = self._block(number)
        return block if position < block + _BLOCK_ROWS else self._block(number + 1)

    def between(self, begin: int, end: int) -> tuple[Positions, npt.NDArray[np.bool_]]:
        """The positions that are chosen from one to before another, and which are held out."""
        blocks = self._chosen_begins(begin // self._rows, -(-end // self._rows))
        at = (blocks[:, None] + np.arange(_BLOCK_ROWS)).ravel()
        at = at[slice(*np.searchsorted(at, (begin, end)))]
        return at, self._drawn(at, _HOLD_EVERY) == 0

    def _block(self, number: int) -> int:
        if not 0 <= number - self._first < _STRETCHES:
            self._first = number
            self._at_hand = self._chosen_begins(number, number + _STRETCHES).tolist()
        return self._at_hand[number - self._first]

    def _chosen_begins(self, first: int, last: int) -> Positions:
        """Where the chosen blocks of stretches begin, from one to before another."""
        number = np.arange(first, last)
        return number * self._rows + self._drawn(number, self._blocks) * _BLOCK_ROWS

    def _drawn(self, numbers: Positions, below: int) -> Positions:
        """By lot for each number, and the same for it every time, one from 0 to below a bound."""
        lot = (numbers + 1 + self._seed).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in _MIX:
            lot = (lot ^ (lot >> np.uint64(shift))) * np.uint64(factor)
        return ((lot >> np.uint64(32)) % np.uint64(below)).astype(np.int64)


def _runs(owner: Positions, keys: Sequence[bytes]) -> tuple[Positions, list[bytes]]:
    """A number for each of these indices of keys, which rise, and the keys by number."""
    is_new = np.empty(owner.size, dtype=np.bool_)
    is_new[0] = True
    np.not_equal(owner[1:], owner[:-1], out=is_new[1:])
    return np.cumsum(is_new) - 1, list(map(keys.__getitem__, owner[is_new].tolist()))


def _by_coming(numbers: Positions) -> tuple[Positions, list[int]]:
    """The numbers anew, from 0 on in the order in which they come, and the old ones by the new."""
    known, first, at = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    new = np.empty_like(order)
    new[order] = np.arange(order.size)
    return new[at], known[order].tolist()


def _codes(columns: Sequence[pa.Array]) -> tuple[Positions, Positions]:
    """A number for the values of each row, equal for equal ones, and a row of each number."""
    code = np.zeros(0, dtype=np.int64)
    for n, column in enumerate(columns):
        if pa.types.is_floating(column.type):
            # In a key -0.0 is 0.0, and every NaN the same one.
            column = pc.add(column, pa.scalar(0, column.type))
            column = pc.if_else(pc.is_nan(column), pa.scalar(np.nan, column.type), column)
        encoded = column.dictionary_encode(null_encoding="encode")
        part = encoded.indices.to_numpy().astype(np.int64)
        if not n:
            code = part
            continue
        # Renumbered after each column, so that products stay small.
        _, code = np.unique(code * len(encoded.dictionary) + part, return_inverse=True)
    row = np.zeros(int(code.max(initial=-1)) + 1, dtype=np.int64)
    row[code] = np.arange(code.size)
    return code.astype(np.int64), row
