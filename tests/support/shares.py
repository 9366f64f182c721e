"""Deals the tests out to the processes that run them, so that all end at about the same time.

pytest-xdist gives each process a part of the list, all of the same length, and lets one that has
nothing left take from the end of another's. So the parts are made here: equally long in seconds
first, long tests before short ones, then equally long in numbers, by tests that take no time. How
long tests take is in `seconds.json`, as a run on 2 cores with `--note-seconds` found it; a test
that is not in it takes as long as most of its kind. Short tests of a file stay together as well:
they share its fixtures, and what it has worked out once.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

import pytest

__all__ = ["Stopwatch", "dealt", "known_seconds"]

_KNOWN = Path(__file__).parents[1] / "seconds.json"
_SECONDS_MIN = 5.0
"""What is shorter is not written down."""
_SPARK_SECONDS = 2.5


def known_seconds() -> dict[str, float]:
    found: dict[str, float] = json.loads(_KNOWN.read_text())
    return found


def dealt(
    items: Iterable[pytest.Item], parts: int, seconds: Mapping[str, float]
) -> list[pytest.Item]:
    """The parts one after the other."""
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    short: list[pytest.Item] = []
    for item in items:
        if not any(map(item.get_closest_marker, ("spark", "together"))):
            short.append(item)
        else:
            groups[_group(item)].append(item)

    def length(group: list[pytest.Item]) -> float:
        return sum(seconds.get(item.nodeid, 0.0) for item in group) or _SPARK_SECONDS

    dealt_out: list[list[pytest.Item]] = [[] for _ in range(parts)]
    lengths = [0.0] * parts
    for group in sorted(groups.values(), key=length, reverse=True):
        part = lengths.index(min(lengths))
        dealt_out[part] += group
        lengths[part] += length(group)
    sizes = [len(part) for part in dealt_out]
    for _ in short:
        sizes[sizes.index(min(sizes))] += 1
    rest = iter(short)
    for part, size in zip(dealt_out, sizes, strict=True):
        part += islice(rest, size - len(part))
    return [item for part in dealt_out for item in part]


def _group(item: pytest.Item) -> str:
    """Tests that share what one of them has made are run by one process, one after the other."""
    shared = item.get_closest_marker("together")
    return item.nodeid if shared is None else str(shared.args[0])


class Stopwatch:
    """Notes how long tests take and writes it down in the end."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        long = {test: round(s) for test, s in self._seconds.items() if s >= _SECONDS_MIN}
        ordered = sorted(long.items(), key=lambda item: (-item[1], item[0]))
        _KNOWN.write_text(json.dumps(dict(ordered), indent=0, ensure_ascii=False) + "\n")
