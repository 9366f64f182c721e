"""Paths of output and checkpoints are read as Hadoop reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from braided.sinks.paths import one_spelling
from braided.store.durable.location import Location


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("/a/b", "/a/b"),
        ("/a/link/../b/", "/a/b"),
        ("//a//b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/./b", "/a/b"),
        ("file:/a%20b", "/a%20b"),
        ("b", str(Path.cwd() / "b")),
    ],
)
def test_a_path_has_one_form(given: str, read: str) -> None:
    location = Location.of(given)
    assert location.text == read and str(location.local) == read


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("/a//b/../c/", "/a/c"),
        ("file:///a/b", "/a/b"),
        ("s3a://user:secret@bucket/t/", "s3a://bucket/t"),
        ("x://user:s@cret@host/t?token=abc", "x://host/t"),
        ("abfss://bronze@account.host/t", "abfss://bronze@account.host/t"),
        ("dbfs:/lake/t/", "dbfs:/lake/t"),
        ("hdfs:/lake/t", "hdfs:/lake/t"),
        ("lake/t", "lake/t"),
    ],
)
def test_a_target_is_written_the_same_wherever_a_process_starts(
    given: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert one_spelling(given) == written
    monkeypatch.chdir(tmp_path)
    assert one_spelling(given) == written
