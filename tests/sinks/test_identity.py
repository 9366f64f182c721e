"""A sink is known again by kind and target, and keeps the name that the checkpoint gave it."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from braided.errors import CheckpointMismatchError
from braided.sinks.base import NoopSink, Sink
from braided.sinks.delta import DeltaSink
from braided.sinks.files import FileSink
from braided.sinks.identity import name_sinks, refuse_lost_output
from braided.sinks.staged import ConsoleSink, ForeachBatchSink, ForeachSink, FormatSink
from braided.store.history.manifest import Prepared


def files(path: str) -> FileSink:
    return FileSink("parquet", path, [], {})


def delta(path: str) -> DeltaSink:
    return DeltaSink(StructType(), [], {"path": path})


def function() -> ForeachBatchSink:
    return ForeachBatchSink(lambda df, batch: None)


def kafka(**options: str) -> FormatSink:
    return FormatSink("kafka", [], options)


def outputs_of(sinks: list[Sink], before: tuple[Prepared, ...] = ()) -> tuple[Prepared, ...]:
    """What the manifest of a batch says of sinks, whatever they have prepared."""
    return tuple(
        Prepared(each.name, ("entry",), each.kind, each.target)
        for each in name_sinks(sinks, before)
    )


def test_a_sink_has_its_name_wherever_its_writer_stands() -> None:
    sinks: list[Sink] = [files("/a"), function(), delta("/t"), files("/b"), kafka(topic="x")]
    before = outputs_of(sinks)
    names = {id(each.sink): each.name for each in name_sinks(sinks, ())}
    for again in (sinks[::-1], sinks[2:] + sinks[:2], sinks[3:]):
        assert all(names[id(each.sink)] == each.name for each in name_sinks(again, before))


def test_what_can_not_be_told_apart_is_numbered_in_the_order_of_the_writers() -> None:
    sinks: list[Sink] = [function(), delta("/t"), function(), delta("/t/"), kafka(), kafka()]
    assert [(each.kind, each.target) for each in name_sinks(sinks, ())] == [
        ("foreachBatch", "1"),
        ("delta", "/t"),
        ("foreachBatch", "2"),
        ("delta", "/t#2"),
        ("kafka", "1"),
        ("kafka", "2"),
    ]
    assert len({each.name for each in name_sinks(sinks, ())}) == 6


def test_a_target_has_one_spelling_and_no_secrets() -> None:
    assert delta("file:///a/../t/").target == delta("/t").target == "/t"
    assert delta("s3a://user:word@bucket/t/").target == "s3a://bucket/t"
    jdbc = FormatSink("jdbc", [], {"url": "jdbc:x://h?password=word", "dbTable": "rows"})
    assert (jdbc.kind, jdbc.target) == ("jdbc", "rows")


@pytest.mark.parametrize(
    ("sinks", "names"),
    [
        ([files("/a")], ["FileSink"]),
        ([delta("/t")], ["DeltaSink"]),
        ([kafka(topic="x")], ["FormatSink"]),
        ([files("/a"), files("/b")], ["FileSink-0", "FileSink-1"]),
        ([function(), NoopSink(), files("/b")], ["ForeachBatchSink-0", "NoopSink-1", "FileSink-2"]),
        (
            [ForeachSink(lambda i, rows: rows), ConsoleSink(1, True)],
            ["ForeachSink-0", "ConsoleSink-1"],
        ),
    ],
)
def test_names_of_earlier_versions_are_understood_and_kept(
    sinks: list[Sink], names: list[str]
) -> None:
    before = tuple(Prepared(name, ()) for name in names)
    assert [each.name for each in name_sinks(sinks, before)] == names
    now = outputs_of(sinks, before)
    assert all(output.kind for output in now)
    swapped = name_sinks(sinks[::-1], now)
    assert [each.name for each in swapped] == names[::-1]
    refuse_lost_output(1, before, name_sinks(sinks, before))
    refuse_lost_output(2, now, swapped)


def test_output_whose_sink_is_gone_is_refused_by_its_target() -> None:
    before = outputs_of([files("/a"), files("/b")])
    words = r"batch 7 .*files /a.*has files /b, files /c"
    with pytest.raises(CheckpointMismatchError, match=words):
        refuse_lost_output(7, before, name_sinks([files("/b"), files("/c")], before))
    earlier = (Prepared("FileSink-0", ()), Prepared("FileSink-1", ()))
    with pytest.raises(CheckpointMismatchError, match="FileSink-0"):
        refuse_lost_output(7, earlier, name_sinks([files("/a")], earlier))


def test_a_format_in_capitals_is_found_by_the_name_it_had() -> None:
    sink = FormatSink("Delta", [], {"path": "/t"})
    (named,) = name_sinks([sink], (Prepared("FormatSink", ("entry",)),))
    assert named.name == "FormatSink"
