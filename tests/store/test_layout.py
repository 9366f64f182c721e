"""Where records and timers lie in a slot."""

from __future__ import annotations

import hashlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braided.store.slots.layout import (
    SUFFIX_BYTES_MAX,
    count_records,
    is_timer,
    record_suffix,
    timer_bound,
    timer_ms,
    timer_parts,
    timer_suffix,
    unwrap,
    wrap,
)

# The first text that Hypothesis draws builds its table of characters, which takes seconds.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

lengths = st.sampled_from([0, 1, 32, 470, 471, 472, 478, 479, 480, 481, 5000])
keys_of_any_length = st.builds(lambda n, fill: bytes([fill]) * n, lengths, st.integers(0, 255))
times = st.integers(-(2**63), 2**63 - 1)


@unhurried
@given(keys_of_any_length, st.binary())
def test_a_record_is_found_with_its_full_key(key: bytes, value: bytes) -> None:
    suffix, is_long = record_suffix(key)
    assert len(suffix) <= SUFFIX_BYTES_MAX
    whole = b"K" + hashlib.blake2b(key, digest_size=32).digest() if is_long else b"k" + key
    assert (suffix, is_long) == (whole, len(key) >= 480)
    stored = wrap(key, value) if is_long else value
    assert unwrap(suffix, stored) == (key, value)
    assert count_records([suffix]) == 1
    assert not is_timer(suffix)


@unhurried
@given(times, keys_of_any_length)
def test_a_timer_tells_its_time_and_full_key(ms: int, key: bytes) -> None:
    suffix, stored = timer_suffix(ms, key)
    assert len(suffix) <= SUFFIX_BYTES_MAX
    assert suffix[:1] == b"t"
    assert is_timer(suffix)
    assert count_records([suffix]) == 0
    assert timer_ms(suffix) == ms
    assert timer_parts(suffix, stored) == (ms, key)


@unhurried
@given(times, keys_of_any_length, times, keys_of_any_length)
def test_timers_are_ordered_by_time(ms: int, key: bytes, later: int, other: bytes) -> None:
    if ms < later:
        assert timer_suffix(ms, key)[0] < timer_bound(later) <= timer_suffix(later, other)[0]


def test_long_keys_with_equal_starts_have_suffixes_of_their_own() -> None:
    suffixes = {record_suffix(b"x" * 1000 + bytes([i]))[0] for i in range(256)}
    assert len(suffixes) == 256
