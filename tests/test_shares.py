"""How the tests of this very run would be dealt out to three processes."""

from __future__ import annotations

from itertools import groupby

import pytest

from support.shares import dealt, known_seconds

PARTS = 3


def is_long(item: pytest.Item) -> bool:
    return any(map(item.get_closest_marker, ("spark", "together")))


def test_parts_have_all_tests_equally_many_and_keep_together_what_shares(
    request: pytest.FixtureRequest,
) -> None:
    items = request.session.items
    order = dealt(items, PARTS, known_seconds())
    assert sorted(item.nodeid for item in order) == sorted(item.nodeid for item in items)
    shared = [mark.args for item in order if (mark := item.get_closest_marker("together"))]
    assert len([name for name, _ in groupby(shared)]) == len(set(shared))
    quick = [item for item in items if not is_long(item)]
    if 3 * len(quick) > 2 * len(items):  # enough to fill the parts up with
        size = len(items) // PARTS
        parts = [order[i * size : (i + 1) * size] for i in range(PARTS)]
        for part in parts:  # long tests first
            # Where they can not be divided evenly, a part begins with the last of the one before.
            inner = part[PARTS - 1 : -PARTS]
            places = [not is_long(item) for item in inner]
            assert places == sorted(places)
    files = [item.path for item in order if not is_long(item)]
    divided = len([path for path, _ in groupby(files)]) - len(set(files))
    assert divided < PARTS  # a file only where a part ends
