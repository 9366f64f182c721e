"""Numbers as people read them."""

from __future__ import annotations

import pytest

from braided.control.routing.words import counted, seconds_in_words, size_in_words


@pytest.mark.parametrize(
    "size, words",
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1500, "1.5 kB"),
        (2.5e6, "2.5 MB"),
        (7e9, "7.0 GB"),
        (3e12, "3.0 TB"),
        (4e15, "4000.0 TB"),
    ],
)
def test_sizes(size: float, words: str) -> None:
    assert size_in_words(size) == words


def test_counts_and_times() -> None:
    assert (counted(0, "slot"), counted(1, "slot")) == ("0 slots", "1 slot")
    assert (seconds_in_words(0.0124), seconds_in_words(2.25)) == ("12 ms", "2.2 s")
