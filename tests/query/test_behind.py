"""Operators behind rows that were left: whose watermark stays, and when a batch must run again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from braided.errors import NondeterministicBatchError
from braided.query.behind import late_watermarks, left_behind
from braided.query.version import Version
from braided.store.history.manifest import CarryFile, OperatorMeta, OperatorVersion, View
from braided.tasks.reports import ChannelReport

ANCESTORS = {
    "a": frozenset[str](),
    "b": frozenset({"a"}),
    "c": frozenset({"a", "b"}),
    "other": frozenset[str](),
}
REST = CarryFile("a", "carry/x", "d", 5)
A = frozenset({"a"})
"""The operator that rows are left of."""
NONE = frozenset[str]()

_NUMBERS = [
    "keys_added",
    "bytes_added",
    "rows_in",
    "rows_out",
    "keys_touched",
    "busy_ns",
    "slots_opened",
    "cache_hits",
    "rolled_back",
    "caught_up",
    "rebuilt",
    "bytes_caught_up",
    "cache_errors",
]


def report(operator: str, channel: int = 0, **more: Any) -> ChannelReport:
    zeros = dict.fromkeys(_NUMBERS, 0)
    plain = ChannelReport(
        operator=operator,
        channel=channel,
        attempt="",
        log=None,
        snap=None,
        carry=None,
        slots=(),
        has_timers=False,
        output_digest="",
        **zeros,
    )
    return msgspec.structs.replace(plain, **more)


def version(watermark_ms: int, **behind_ms: int) -> Version:
    operators = {}
    for ordinal, name in enumerate(ANCESTORS):
        meta = OperatorMeta(ordinal, 4, "k string", "", "")
        empty = OperatorVersion.empty(meta)
        empty.behind_ms = behind_ms.get(name)
        operators[name] = empty
    return Version(View("f", 3, operators, ()), {}, watermark_ms)


def reports(**by_operator: list[ChannelReport]) -> dict[str, list[ChannelReport]]:
    return {name: by_operator.get(name, [report(name)]) for name in ANCESTORS}


def held(name: str) -> list[ChannelReport]:
    return [report(name, 0, holds_watermark=True), report(name, 1, holds_watermark=True)]


def test_nobody_is_behind_a_batch_that_was_not_cut() -> None:
    assert left_behind(ANCESTORS, reports(b=held("b")), NONE, NONE, version(100), 200) == {}


def test_what_comes_by_time_is_not_late_where_it_was_put_off() -> None:
    fires = frozenset({"b"})
    put_off = reports(b=held("b"), c=held("c"))
    assert left_behind(ANCESTORS, put_off, NONE, fires, version(100), 200) == {"c": 100}
    assert left_behind(ANCESTORS, reports(), NONE, fires, version(100), 200) == {}
    with pytest.raises(NondeterministicBatchError, match=r"channels \[0\] of operator 'c'"):
        left_behind(ANCESTORS, reports(b=held("b")), NONE, fires, version(100), 200)


def test_all_operators_after_the_cut_one_keep_their_watermark() -> None:
    cut = reports(a=[report("a"), report("a", 1, carry=REST)], b=held("b"), c=held("c"))
    assert left_behind(ANCESTORS, cut, A, NONE, version(100), 200) == {"b": 100, "c": 100}


def test_one_that_is_behind_already_stays_where_it_is() -> None:
    cut = reports(a=[report("a", carry=REST)], b=held("b"), c=held("c"))
    before = version(100, c=50)
    assert late_watermarks(before) == {"c": 50}
    assert left_behind(ANCESTORS, cut, A, NONE, before, 200) == {"b": 100, "c": 50}


def test_a_channel_that_went_ahead_makes_the_batch_run_again() -> None:
    ahead = [report("b", 0, holds_watermark=True), report("b", 1)]
    cut = reports(a=[report("a", carry=REST)], b=ahead, c=held("c"))
    with pytest.raises(NondeterministicBatchError, match=r"channels \[1\] of operator 'b'"):
        left_behind(ANCESTORS, cut, A, NONE, version(100), 200)
    # Where the watermark has not moved, nobody can be ahead of it.
    assert left_behind(ANCESTORS, cut, A, NONE, version(100), 100) == {}
