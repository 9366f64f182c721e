"""The traces of `braided bench scale`: how rows arrive, of which keys, and what they cost.

A row costs a millisecond. Where it waits for most of that, 2 cores stand in for many; where it
computes, 2 cores are 2 cores. The load steps up after a while and down again; noise is a factor for
every interval. Where more is offered than can be done, whatever the channels, because of a sink or
a key, a batch takes what came in an interval and no more, and the rest is done later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from braided.bench.arrivals import FILE_S
from braided.bench.session import KeyNumbers
from braided.bench.waiting import ROW_S
from braided.sim.arrivals import Arrivals, Constant, Spike

__all__ = ["SESSION_ROWS", "Phases", "Trace", "keys_of", "traces"]

SESSION_ROWS = 3
"""Of a key: in as many files, one after the other, and never again."""
_KEYS = 500
_COMPUTED = 0.05
"""Of a row that waits: nothing real only waits."""


@dataclass(frozen=True)
class Phases:
    """Seconds before a surge, of it, and after; and of a load that is constant."""

    before_s: float
    surge_s: float
    after_s: float
    constant_s: float

    @property
    def all_s(self) -> float:
        return self.before_s + self.surge_s + self.after_s


@dataclass(frozen=True)
class Trace:
    """Rows that arrive for `length_s`; `steps_s` is when the load changes, the start included.

    `computed` is the part of a row's time in which it needs a core. With `sessions`, keys live for
    a moment, and closing them costs `timer_s`.
    """

    name: str
    arrivals: Arrivals
    length_s: float
    steps_s: tuple[float, ...] = (0.0,)
    noise: float = 0.0
    row_s: float = ROW_S
    computed: float = _COMPUTED
    hot_share: float = 0.0
    sink_row_s: float = 0.0
    is_bounded: bool = False  # whether a batch takes in no more than comes in an interval
    sessions: bool = False
    timer_s: float = 0.0

    @property
    def work(self) -> str:
        return "computing" if self.computed == 1.0 else "waiting"

    def file_rows(self, interval_s: float) -> list[int]:
        """How many rows each file has."""
        chance = np.random.default_rng(17)
        files = round(self.length_s / FILE_S)
        intervals = int(self.length_s / interval_s) + 1
        factors = np.maximum(0.0, 1 + self.noise * chance.standard_normal(intervals))
        rows = []
        for number in range(files):
            factor = factors[int(number * FILE_S / interval_s)]
            rows.append(round(self.arrivals.rate(number * FILE_S) * FILE_S * factor))
        return rows

    def interval_rows(self, interval_s: float) -> list[int]:
        """How many rows come in each interval."""
        sums = [0] * max(1, round(self.length_s / interval_s))
        for number, rows in enumerate(self.file_rows(interval_s)):
            sums[min(len(sums) - 1, int(number * FILE_S / interval_s))] += rows
        return sums


def traces(phases: Phases) -> tuple[Trace, ...]:
    """All of them."""

    def spike(name: str, base: float, times: float, **others: float | bool) -> Trace:
        arrivals = Spike(base, base * times, phases.before_s, phases.surge_s)
        steps_s = (0.0, phases.before_s, phases.before_s + phases.surge_s)
        return Trace(name, arrivals, phases.all_s, steps_s, **others)  # type: ignore[arg-type]

    def constant(name: str, rows_per_s: float, **others: float | bool) -> Trace:
        arrivals = Constant(rows_per_s)
        return Trace(name, arrivals, phases.constant_s, **others)  # type: ignore[arg-type]

    return (
        constant("noise", 1500, noise=0.3),
        spike("double", 1000, 2),
        spike("tenfold", 300, 10),
        # Twice what the sink takes; operators and sink share the time of a batch.
        constant("sink", 1000, row_s=0.0005, sink_row_s=0.002, is_bounded=True),
        # 1.2 channels for the key alone.
        constant("key", 2200, hot_share=0.55, is_bounded=True),
        spike("sessions", 800, 2, row_s=0.0002, sessions=True, timer_s=0.003),
        spike("double", 400, 2, computed=1.0),
        # Three quarters of 2 cores, which Spark needs too.
        spike("tenfold", 150, 10, computed=1.0),
    )


def keys_of(trace: Trace, interval_s: float) -> Callable[[int], KeyNumbers]:
    """The keys of the rows of each file, asked for in turn."""
    chance = np.random.default_rng(3)
    rows_of = trace.file_rows(interval_s)
    if trace.sessions:
        return _session_keys(rows_of)

    def drawn(number: int) -> KeyNumbers:
        keys: KeyNumbers = chance.integers(1, _KEYS, rows_of[number])
        keys[chance.random(keys.size) < trace.hot_share] = 0
        return keys

    return drawn


def _session_keys(rows_of: list[int]) -> Callable[[int], KeyNumbers]:
    alive: deque[KeyNumbers] = deque(maxlen=SESSION_ROWS)
    first = 0

    def drawn(number: int) -> KeyNumbers:
        nonlocal first
        new = round(rows_of[number] / SESSION_ROWS)
        alive.append(np.arange(first, first + new, dtype=np.int64))
        first += new
        return np.concatenate(list(alive))

    return drawn
