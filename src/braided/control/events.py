"""The event log: what was measured, decided, planned and observed, one JSON object a line.

Every line has the batch after which it was written and the operator or policy it is about; `type`
says what it is. A decision carries what it expects, and a later line how that turned
out. The load of all slots is in it too, in few bytes, so that `braided replay` can ask another
policy what it would have done.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from braided.control.policy import Bounds
from braided.control.routing.table import Loads

__all__ = [
    "FACTORS",
    "Counted",
    "CountingSwitched",
    "CutShort",
    "Decided",
    "Event",
    "EventLogError",
    "Failed",
    "Judged",
    "Limited",
    "Located",
    "Measured",
    "Migrated",
    "Planned",
    "Started",
    "encode",
    "pack_loads",
    "read",
    "unjudged",
    "unpack_loads",
]


class EventLogError(ValueError):
    """A line that is no event."""


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """One operator as policies saw it; rates in rows per second, loads in busy seconds per second.

    `slots` is each slot's load, packed, and `timer_load` the part of all that slots without rows
    have.
    """

    batch: int
    operator: str
    upstream: tuple[str, ...]
    interval_s: float
    collected_s: float
    duration_s: float
    overhead_s: float
    latency_s: float | None
    epoch: int
    channels: int
    rows: float
    arrival_rate: float
    throughput: float
    true_rate: float
    selectivity: float
    backlog_rows: float
    congestion: float
    imbalance: float
    bound: float
    state_bytes: float
    slots: str
    timer_load: float = 0.0


class Decided(msgspec.Struct, frozen=True, tag="decided"):
    """A wish with its reason; `held` says why it was not followed, and is empty if it was. For a
    key that is pinned or split, the seconds that it should save within the horizon and those that
    it takes; other decisions have them in their plan.
    """

    batch: int
    operator: str
    decision: int
    kind: str  # scale, balance, pin, unpin, split, whole or reshape
    reason: str
    channels_before: int
    channels_after: int
    held: str = ""
    metric: str = ""
    before: float | None = None
    expected: float | None = None
    key: str = ""
    gain_s: float | None = None
    cost_s: float | None = None


class Planned(msgspec.Struct, frozen=True, tag="planned"):
    """A table that was asked for, or dropped because it does not pay."""

    batch: int
    operator: str
    decisions: tuple[int, ...]
    epoch: int
    channels: int
    moved_slots: int
    moved_bytes: float
    gain_s: float
    cost_s: float
    dropped: bool
    locality_s: float = 0.0  # what it loses of the rows that stayed on their host


class Judged(msgspec.Struct, frozen=True, tag="judged"):
    """What came of a decision: effective, ineffective, overtaken by another load, or unclear. Or
    why that can't be said: superseded by another table, or unjudged, where nothing was promised
    that could be measured.
    """

    batch: int
    operator: str
    decision: int
    verdict: str
    metric: str
    before: float | None
    expected: float | None
    observed: float | None
    held_until: int | None = None
    why: str = ""


class Limited(msgspec.Struct, frozen=True, tag="limited"):
    """An operator that would have other channels, or whose input waits, and keeps what it has after
    this batch: by what, in a word and in a sentence. `wished` is what its policy asked for.
    """

    batch: int
    operator: str
    factor: str  # one of FACTORS
    why: str
    channels: int
    wished: int
    congestion: float


FACTORS = {
    "hot key": "one key keeps a channel busy",
    "cores": "as many channels run as there are cores for",
    "sink": "what comes after the operator takes no more",
    "overhead": "batches are short of time for other things than rows",
    "bounds": "braided.channels.min and .max, or slots",
    "cool-down": "channels were changed a short while ago",
    "calm": "it is not yet sure that fewer are enough",
    "delay": "it is not yet sure that more are needed",
    "no help": "the same did not help before",
    "cost": "to change would cost more than it brings",
    "start": "the first batches of a process start workers and fill caches",
    "pending": "what was asked for last is not in effect yet",
    "policy": "the policy does not ask for other channels",
    "dry run": "the policy only says what it would do",
}
"""What keeps an operator from having other channels, in the words of the log."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """A query has started, with these policies and bounds; `batch` is the next one. `operators`
    have bounds of their own, and the channels of those that are `excluded` stay as they are.
    """

    batch: int
    scale: str
    balance: str
    channels_min: int
    channels_max: int
    operators: dict[str, Bounds] = {}
    excluded: tuple[str, ...] = ()


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A policy that raised or gave back what can't be: it is not asked again for some batches."""

    batch: int
    policy: str
    error: str
    held_until: int


class Migrated(msgspec.Struct, frozen=True, tag="migrated"):
    """A migration to other executors: how it ended, and once more when output was stable again.

    `metrics` are those of `migrate/metrics.py`.
    """

    batch: int
    strategy: str
    outcome: str
    why: str
    metrics: dict[str, float | None]


class CutShort(msgspec.Struct, frozen=True, tag="cut"):
    """A batch that ended early, after some seconds and with rows left for the next one; and once
    more when these are done and output is stable again, or the next cut has come.

    `metrics` are those of `query/after_cuts.py`.
    """

    batch: int
    why: str
    after_s: float
    rows_left: int
    metrics: dict[str, float | None] = {}


class Counted(msgspec.Struct, frozen=True, tag="counted"):
    """A batch whose rows were counted before they were routed: how long that took, and what its
    table saves, in seconds of the busiest channel; 0 where the table stayed.
    """

    batch: int
    rows: int
    pass_s: float
    saved_s: float
    moved_slots: dict[str, int]


class CountingSwitched(msgspec.Struct, frozen=True, tag="counting"):
    """From this batch on rows are counted before they are routed, or no more, and why."""

    batch: int
    on: bool
    why: str


class Located(msgspec.Struct, frozen=True, tag="locality"):
    """Tables of keys that bring together what occurs together: what they were weighed by, in
    seconds within the horizon, and whether they were asked for; `held` says why not.

    Localities are shares of rows that stay on their host: now, as held-out rows promise it, and as
    it is expected by what earlier promises came to.
    """

    batch: int
    operators: tuple[str, ...]
    decision: int
    reason: str
    locality: float
    promised: float
    expected: float
    imbalance: float
    imbalance_expected: float
    known: float
    entries: int
    moved_keys: int
    moved_bytes: float
    locality_s: float
    balance_s: float
    moving_s: float
    held: str = ""


Event = (
    Measured
    | Decided
    | Planned
    | Judged
    | Limited
    | Started
    | Failed
    | Migrated
    | CutShort
    | Counted
    | CountingSwitched
    | Located
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """One line, with its end."""
    return _encoder.encode(event) + b"\n"


def read(lines: Iterable[bytes]) -> Iterator[Event]:
    """The events of a log. A last line that was cut short by a crash is passed over."""
    waiting: bytes | None = None
    number = 0
    for number, line in enumerate(lines, start=1):
        if waiting is not None:
            yield _decode(waiting, number - 1)
        waiting = line if line.strip() else None
    if waiting is not None and waiting.endswith(b"\n"):
        yield _decode(waiting, number)


def unjudged(batch: int, operator: str, decision: int, why: str) -> Judged:
    """That a decision can't be judged, and why."""
    return Judged(
        batch=batch,
        operator=operator,
        decision=decision,
        verdict="unjudged",
        metric="",
        before=None,
        expected=None,
        observed=None,
        why=why,
    )


def pack_loads(load: Loads) -> str:
    """Numbers of at least 0 in 16 bits each, as shares of the highest, which comes first."""
    highest = float(load.max(initial=0.0))
    shares = np.rint(load / (highest or 1.0) * 65535).astype("<u2")
    return f"{highest!r}:{base64.b64encode(shares.tobytes()).decode()}"


def unpack_loads(text: str) -> Loads:
    """What `pack_loads` packed, to within a part in 65,535 of the highest."""
    highest, colon, shares = text.partition(":")
    if not colon:
        raise EventLogError(f"no loads: {text[:20]!r}")
    numbers = np.frombuffer(base64.b64decode(shares), "<u2")
    return numbers / 65535 * float(highest)


def _decode(line: bytes, number: int) -> Event:
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EventLogError(f"line {number} is no event: {error}") from None
