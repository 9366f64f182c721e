"""Paths of output and checkpoints are read as Hadoop reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from braided.errors import UnsupportedError
from braided.sinks.paths import local_path


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("/a/b", "/a/b"),
        ("/a/link/../b/", "/a/b"),
        ("//a//b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/./b", "/a/b"),
        ("b", str(Path.cwd() / "b")),
    ],
)
def test_a_path_has_one_form(given: str, read: str) -> None:
    assert local_path(given) == read


def test_a_path_elsewhere_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="s3://a/b"):
        local_path("s3://a/b")
