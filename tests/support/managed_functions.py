"""Plain functions over dicts, as one finds them: each made anew, with dicts of its own.

Rows are (id, kind, value, tags). Every function here is recognised by `braided.managed`.
"""

from __future__ import annotations

import bisect
import enum
import heapq
import math
import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

__all__ = ["FUNCTIONS", "Make"]

Function = Callable[[Any], Any]
Make = Callable[[], Function]

LIMIT = 10
KINDS = {"a", "b"}
RATES = {"a": 2, "b": 3}
WORD = re.compile(r"[a-f]")
MISSING = object()


class Mood(enum.Enum):
    CALM = "calm"
    WILD = "wild"


class Span(NamedTuple):
    low: int
    high: int


@dataclass
class Level:
    price: int = 0
    sizes: list[int] = field(default_factory=list)

    def take(self, size: int) -> int:
        self.sizes.append(size)
        self.price = max(self.price, size)
        return sum(self.sizes)


def distance(one: int, other: int) -> int:
    return abs(one - other)


def labelled(row: Any, count: int) -> Iterator[dict[str, Any]]:
    for number in range(min(count, 2)):
        yield {"id": row.id, "n": number, "far": distance(count, number)}


def threshold() -> Function:
    last: dict[str, int] = {}
    seen: dict[str, int] = {}

    def alert(row: Any) -> Iterator[Any]:
        if row.id in last and abs(row.value - last[row.id]) > LIMIT:
            yield {"id": row.id, "value": row.value}
        last[row.id] = row.value
        seen[row.id] = seen.get(row.id, 0) + 1

    return alert


def default_counts() -> Function:
    counts: defaultdict[str, int] = defaultdict(int)

    def count(row: Any) -> Iterator[Any]:
        counts[row.id] += row.value
        yield row.id, counts[row.id]

    return count


def looked_at() -> Function:
    """Reading makes an entry in a defaultdict."""
    lists: dict[str, list[int]] = defaultdict(lambda: [0])

    def look(row: Any) -> Iterator[Any]:
        yield row.id, list(lists[row["id"]]), row.id in lists

    return look


def counter() -> Function:
    votes: Counter[str] = Counter()

    def vote(row: Any) -> Iterator[Any]:
        yield votes[row.id], row.id in votes
        if row.value > 5:
            votes[row.id] += 1
        else:
            del votes[row.id]

    return vote


def grouped_list() -> Function:
    history: dict[str, list[int]] = {}

    def collect(row: Any) -> Iterator[Any]:
        if row.id not in history:
            history[row.id] = []
        history[row.id].append(row.value)
        if len(history[row.id]) == 3:
            yield row.id, history.pop(row.id)

    return collect


def set_default() -> Function:
    seen: dict[str, set[int]] = {}

    def fresh(row: Any) -> Iterator[Any]:
        mine = seen.setdefault(row.id, set())
        if row.value not in mine:
            mine.add(row.value)
            yield row.id, sorted(mine)

    return fresh


def alias() -> Function:
    best: dict[str, int] = {}

    def highest(row: Any) -> Iterator[Any]:
        key = row.id
        if row.value > best.get(key, -1):
            best[key] = row.value
            yield key, best[key]

    return highest


def pair_key() -> Function:
    totals: dict[tuple[str, str], int] = {}

    def total(row: Any) -> Iterator[Any]:
        who, what = row.id, row["kind"]
        pair = (who, what)
        totals[pair] = totals.get((row.id, row.kind), 0) + row.value
        yield who, what, totals[who, what]

    return total


def key_error() -> Function:
    first: dict[str, int] = {}

    def since(row: Any) -> Iterator[Any]:
        try:
            yield row.id, row.value - first[row.id]
        except KeyError as error:
            yield row.id, str(error)
            first[row.id] = row.value

    return since


def deleting() -> Function:
    open_: dict[str, int] = {}
    closed: dict[str, int] = {}

    def session(row: Any) -> Iterator[Any]:
        if row.value % 3 == 0 and row.id in open_:
            yield row.id, open_[row.id]
            del open_[row.id]
            closed.pop(row.id, None)
        elif row.value % 5 == 0:
            closed[row.id] = open_.pop(row.id, 0)
        else:
            open_[row.id] = row.value

    return session


def nothing_is_something() -> Function:
    last: dict[str, int | None] = {}

    def previous(row: Any) -> Iterator[Any]:
        before = last.get(row.id, MISSING)
        if before is MISSING:
            yield row.id, "new"
        elif before is None:
            yield row.id, "none"
        last[row.id] = None if row.value % 2 else row.value

    return previous


def read_only_tables() -> Function:
    sums: dict[str, float] = {}

    def charge(row: Any) -> list[Any]:
        if row.kind not in KINDS or not WORD.match(row.kind):
            return []
        sums[row.id] = sums.get(row.id, 0.0) + RATES[row.kind] * math.sqrt(row.value)
        return [(row.id, sums[row.id], len(RATES), max(RATES.values()))]

    return charge


def helpers() -> Function:
    counts: dict[str, int] = {}

    def labels(row: Any) -> Iterator[Any]:
        counts[row.id] = distance(counts.get(row.id, 0), -1)
        yield from labelled(row, counts[row.id])

    return labels


def objects() -> Function:
    books: dict[str, Level] = {}

    def trade(row: Any) -> Iterator[Any]:
        if row.id not in books:
            books[row.id] = Level()
        book = books[row.id]
        yield row.id, book.take(row.value), book.price
        books[row.id].price -= 1

    return trade


def enums_and_tuples() -> Function:
    moods: dict[str, Mood] = {}
    spans: OrderedDict[str, Span] = OrderedDict()

    def mood(row: Any) -> Iterator[Any]:
        span = spans.get(row.id, Span(row.value, row.value))
        spans[row.id] = Span(min(span.low, row.value), max(span.high, row.value))
        now = Mood.WILD if spans[row.id].high - spans[row.id].low > 8 else Mood.CALM
        if moods.get(row.id) != now:
            moods[row.id] = now
            yield row.id, now.value, now is Mood.WILD

    return mood


def nested() -> Function:
    by_kind: dict[str, dict[str, list[int]]] = {}

    def kinds(row: Any) -> Iterator[Any]:
        mine = by_kind.setdefault(row.id, {})
        mine.setdefault(row.kind, []).append(row.value)
        yield row.id, {kind: sum(values) for kind, values in mine.items()}

    return kinds


def heaps() -> Function:
    heap: dict[str, list[int]] = {}
    ordered: dict[str, list[int]] = {}

    def smallest(row: Any) -> Iterator[Any]:
        heapq.heappush(heap.setdefault(row.id, []), row.value)
        bisect.insort(ordered.setdefault(row.id, []), row.value)
        if len(heap[row.id]) > 2:
            yield row.id, heapq.heappop(heap[row.id]), ordered[row.id][-1]

    return smallest


def matching() -> Function:
    state: dict[str, str] = {}

    def step(row: Any, jump: int = 3) -> Iterator[Any]:
        match (state.get(row.id), row.value % jump):
            case (None, _):
                state[row.id] = "started"
            case ("started", 0):
                state[row.id] = "half"
            case ("half", rest) if rest:
                del state[row.id]
                yield row.id, "done", rest

    return step


def everything_local() -> Function:
    recent: dict[str, list[int]] = {}

    def smooth(row: Any) -> Iterator[Any]:
        values = [*recent.get(row.id, []), row.value][-4:]
        recent[row.id] = values
        weights = {number: value for number, value in enumerate(values) if value}
        total, n = 0, 0
        for number in sorted(weights, key=lambda place: -place):
            total += weights[number]
            n += 1
        while n > 2:
            n -= 1
        with np.errstate():
            yield row.id, total, n, float(np.mean(values)), any(v > 3 for v in recent[row.id])

    return smooth


FUNCTIONS: tuple[Make, ...] = (
    threshold,
    default_counts,
    looked_at,
    counter,
    grouped_list,
    set_default,
    alias,
    pair_key,
    key_error,
    deleting,
    nothing_is_something,
    read_only_tables,
    helpers,
    objects,
    enums_and_tuples,
    nested,
    heaps,
    matching,
    everything_local,
)
