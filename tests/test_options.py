"""Options: where they come from, what they take, and what a person is told when they are wrong."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import pytest

from braided.errors import OptionError
from braided.options import Options


def test_nothing_given_means_the_defaults() -> None:
    assert Options.parse({}, {}, channels=4) == Options(channels=4)


def test_the_writer_wins_over_the_session() -> None:
    options = Options.parse(
        {"braided.slots": "64"}, {"spark.braided.slots": "32", "spark.braided.channels": "3"}
    )
    assert (options.slots, options.channels) == (64, 3)


def test_a_bad_session_value_does_not_matter_when_the_writer_overrides_it() -> None:
    assert Options.parse({"braided.slots": 8}, {"spark.braided.slots": "many"}).slots == 8


def test_names_do_not_care_about_case() -> None:
    options = Options.parse(
        {"BRAIDED.Snapshot.MINBYTES": "2k"}, {"spark.braided.ORDERpreserving": "TRUE"}
    )
    assert (options.snapshot_min_bytes, options.order_preserving) == (2048, True)


def test_options_of_others_are_passed_over() -> None:
    writer = {"path": "/x", "checkpointLocation": "/y", "braidedfoo": "1"}
    assert Options.parse(writer, {"spark.sql.shuffle.partitions": "7"}) == Options()


def test_what_was_asked_for_can_be_told_from_a_default() -> None:
    options = Options.parse({"braided.slots": 256}, {"spark.braided.orderBy": "ts"}, channels=2)
    assert options.given == {"slots", "order_by"}
    assert Options.parse({}).given == frozenset()


def test_none_means_not_given() -> None:
    assert Options.parse({"braided.orderBy": None}).order_by is None


def test_default_channels_never_exceed_the_slots_but_asked_ones_may() -> None:
    assert Options.parse({"braided.slots": 4}, channels=64).channels == 4
    assert Options.parse({"braided.slots": 4, "braided.channels": 16}).channels == 16


@pytest.mark.parametrize(
    ("name", "value", "field", "parsed"),
    [
        ("slots", 512, "slots", 512),
        ("slots", "262144", "slots", 262_144),
        ("snapshot.minBytes", "0", "snapshot_min_bytes", 0),
        ("snapshot.minBytes", "512k", "snapshot_min_bytes", 512 << 10),
        ("snapshot.minBytes", "64m", "snapshot_min_bytes", 64 << 20),
        ("snapshot.minBytes", "1G", "snapshot_min_bytes", 1 << 30),
        ("snapshot.minBytes", "3mb", "snapshot_min_bytes", 3 << 20),
        ("snapshot.factor", "0.5", "snapshot_factor", 0.5),
        ("snapshot.factor", 3, "snapshot_factor", 3.0),
        ("snapshot.perTask", "1", "snapshots_per_task", 1),
        ("retainedManifests", "2", "retained_manifests", 2),
        ("fullManifestEvery", "1", "full_manifest_every", 1),
        ("orderPreserving", True, "order_preserving", True),
        ("orderPreserving", "False", "order_preserving", False),
        ("orderBy", "ts", "order_by", "ts"),
        ("stopTimeout", "0", "stop_timeout_s", 0.0),
        ("stopTimeout", 2.5, "stop_timeout_s", 2.5),
        ("stopTimeout", "10s", "stop_timeout_s", 10.0),
        ("stopTimeout", "500ms", "stop_timeout_s", 0.5),
        ("stopTimeout", "2min", "stop_timeout_s", 120.0),
        ("cache.dir", "/fast/disk", "cache_dir", "/fast/disk"),
        ("cache.maxBytes", "2g", "cache_max_bytes", 2 << 30),
        ("cache.dir", "file:///fast/disk", "cache_dir", "/fast/disk"),
        ("cache.dir", "file:/fast/disk", "cache_dir", "/fast/disk"),
        ("cache.dir", "near", "cache_dir", os.path.abspath("near")),
        ("cache.dir", "./a:b", "cache_dir", os.path.abspath("a:b")),
        ("cache.dir", "~/near", "cache_dir", os.path.expanduser("~/near")),
    ],
)
def test_values_are_read_as_spark_reads_them(
    name: str, value: object, field: str, parsed: object
) -> None:
    got = getattr(Options.parse({f"braided.{name}": value}), field)
    assert got == parsed
    assert type(got) is type(parsed)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slots", "0"),
        ("slots", "262145"),
        ("slots", "4.0"),
        ("slots", "1_000"),
        ("slots", ""),
        ("slots", True),
        ("channels", "-1"),
        ("channels", "65537"),
        ("snapshot.minBytes", "-1"),
        ("snapshot.minBytes", "1.5m"),
        ("snapshot.minBytes", "3 apples"),
        ("snapshot.factor", "0"),
        ("snapshot.factor", "nan"),
        ("snapshot.factor", "inf"),
        ("snapshot.factor", "two"),
        ("snapshot.perTask", "0"),
        ("retainedManifests", "1"),
        ("fullManifestEvery", "0"),
        ("orderPreserving", "yes"),
        ("orderPreserving", ""),
        ("orderBy", " "),
        ("cache.dir", ""),
        ("cache.dir", "s3://bucket/dir"),
        ("cache.dir", "dbfs:/dir"),
        ("cache.dir", "hdfs:/dir"),
        ("stopTimeout", "-1"),
        ("stopTimeout", "soon"),
    ],
)
def test_a_bad_value_is_refused_naming_option_value_and_what_it_takes(
    name: str, value: object
) -> None:
    with pytest.raises(OptionError) as caught:
        Options.parse({f"braided.{name}": value})
    message = str(caught.value)
    assert message.startswith(f"braided.{name} is '")
    assert "it takes " in message


def test_the_name_in_the_message_is_the_one_the_user_wrote() -> None:
    with pytest.raises(OptionError, match=r"^spark\.braided\.Slots is 'x'"):
        Options.parse({}, {"spark.braided.Slots": "x"})


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("slot", "slots"),
        ("channel", "channels"),
        ("minBytes", "snapshot.minBytes"),
        ("snapshotFactor", "snapshot.factor"),
        ("retainManifests", "retainedManifests"),
        ("orderpreserve", "orderPreserving"),
        ("cachedir", "cache.dir"),
        ("stop.timeout", "stopTimeout"),
    ],
)
@pytest.mark.parametrize("prefix", ["braided.", "spark.braided."])
def test_an_unknown_name_is_refused_naming_the_nearest_and_all(
    prefix: str, given: str, nearest: str
) -> None:
    mapping = {prefix + given: "1"}
    with pytest.raises(OptionError) as caught:
        Options.parse(*((mapping,) if prefix == "braided." else ({}, mapping)))
    message = str(caught.value)
    assert f"no option {prefix}{given}; the nearest is {prefix}{nearest}." in message
    for name in Options.names():
        assert prefix + name.removeprefix("braided.") in message


def test_a_name_like_nothing_else_still_gets_an_answer() -> None:
    for name in ("", "zzz", "."):
        with pytest.raises(OptionError, match="the nearest is"):
            Options.parse({f"braided.{name}": "1"})


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        Options.parse({"braided.slotz": "1", "braided.channels": "none"})
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 options are wrong:"
    assert [line.split()[0] for line in lines[1:]] == ["There", "braided.channels"]


def test_describe_has_a_row_for_every_option_and_every_field_has_an_option() -> None:
    rows = Options.describe().splitlines()[2:]
    settings = {each.name for each in fields(Options)} - {"given", "store"}
    assert len(rows) == len(Options.names()) == len(settings)
    assert all(row.count("|") == 5 for row in rows)
    assert any("`braided.snapshot.minBytes`" in row and "| 1m |" in row for row in rows)


def test_the_readme_lists_all_options() -> None:
    assert Options.describe() in (Path(__file__).parents[1] / "README.md").read_text()


def test_a_policy_is_a_name_or_an_object() -> None:
    class Mine:
        def scale(self, flow: object, limits: object, memory: object) -> object:
            return {}, memory

    mine = Mine()
    assert Options.parse({"braided.scale": mine}).scale is mine
    assert Options.parse({}, {"spark.braided.scale": "saso"}).scale == "saso"
    for name in ("scale", "balance"):
        for wrong in ("sasso", object(), 3, True):
            with pytest.raises(
                OptionError, match=rf"^braided\.{name} is .*; it takes .*static|ds2"
            ):
                Options.parse({f"braided.{name}": wrong})


def test_channels_start_within_their_bounds() -> None:
    assert Options.parse({"braided.channels.max": 3}, channels=8).channels == 3
    assert Options.parse({"braided.channels.min": 3}, channels=2).channels == 3
    assert Options.parse({"braided.channels.min": 3}, channels=8).channels == 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"channels.min": 5, "channels.max": 4}, "the least is not above the most"),
        (
            {"executors": 2, "balance": "autoflow"},
            "executors is 2, but braided.balance is 'autoflow', which knows no key ranges",
        ),
        ({"channels.max": 4, "channels": 5}, "channels is 5, but braided.channels.max is 4"),
        ({"channels.min": 4, "channels": 3}, "channels is 3, but braided.channels.min is 4"),
        ({"latencyTarget": "1s", "scale": "ds2"}, "braided.scale=model keeps to"),
        ({"latencyTarget": "0s"}, "it takes a time above 0"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: dict[str, object], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        Options.parse({f"braided.{name}": value for name, value in options.items()})
