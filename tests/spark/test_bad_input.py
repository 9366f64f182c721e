"""Rows, keys and values at the edge of what is possible, and programs that ask for what is not.

Whatever is refused is refused by a typed error that says what is wrong, and costs nothing: after
the program is mended, the same query goes on and comes to the right result.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import braided
from braided.errors import (
    DefinitionError,
    OperatorDefinitionError,
    OptionError,
    OutputSchemaError,
    StateValueError,
    UnsupportedError,
    WorkerLostError,
)
from support.bad_input_harness import MemoryProbe, Tally, failure
from support.stream_harness import Lab, committed_view, last_batch, manifests_of

SCHEMA = "k string, v bigint"
TALLY = "k string, count bigint, total bigint"


def drop_cache(lab: Lab) -> dict[str, str]:
    """Options with a cache directory that nothing has been written to."""
    return {"cache.dir": str(lab.home / f"cache-{len(list(lab.home.glob('cache-*')))}")}


# -- keys ----------------------------------------------------------------------------------------


def test_null_and_nan_are_keys_and_both_zeros_are_one_key(lab: Lab) -> None:
    class Count(braided.Operator):
        rows: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            self.rows += 1
            yield row.d, row.s, self.rows

    [odd_nan] = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\xff")
    doubles = [math.nan, odd_nan, -math.nan, 0.0, -0.0, None, 1.5]
    feed = lab.feed("d double, s string")
    flow = (
        braided.stream(feed.frame())
        .groupBy("d", "s")
        .apply(Count, "d double, s string, rows bigint")
    )
    for _ in range(2):  # the second start reads the state of the first from its files
        feed.add([(d, s) for d in doubles for s in (None, "")])
        lab.run(flow, channels=2, slots=8, **drop_cache(lab))

    def named(d: float | None) -> Any:
        return "NaN" if d is not None and math.isnan(d) else d

    expected = {"NaN": 6, 0.0: 4, None: 2, 1.5: 2}
    state = {(named(d), s): fields["rows"] for (d, s), fields in lab.state(flow).items()}
    assert state == {(d, s): rows for d, rows in expected.items() for s in (None, "")}
    newest = Counter((named(d), s, rows) for d, s, rows in lab.rows())
    assert newest == Counter(
        (d, s, n + 1) for d, rows in expected.items() for s in (None, "") for n in range(rows)
    )


def test_keys_longer_than_511_bytes_keep_their_state_through_a_restart(lab: Lab) -> None:
    long = [n * "x" + end for n in (505, 506, 507, 508, 509, 510, 511, 512, 1000) for end in "ab"]
    keys = [*long, "ü" * 300, "y" * (1 << 20), ""]
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Tally, TALLY)
    for start in range(2):
        feed.add([(k, start + 1) for k in keys])
        lab.run(flow, channels=2, slots=2, **drop_cache(lab))
    assert lab.state(flow) == {(k,): {"count": 2, "total": 3} for k in keys}
    assert Counter(lab.rows()) == Counter([(k, n, (0, 1, 3)[n]) for k in keys for n in (1, 2)])


# -- sizes ---------------------------------------------------------------------------------------


def test_values_of_a_megabyte_pass_through_rows_and_state(lab: Lab) -> None:
    class Keep(braided.Operator):
        text: str = ""
        parts: list[bytes] = []  # noqa: RUF012 - a field's default, copied for every key

        def onRow(self, row: Any) -> Iterator[Any]:
            before, self.text = self.text, row.body
            self.parts.append(row.body.encode())
            yield row.k, before, row.body, b"".join(self.parts)

    size = 1 << 20
    feed = lab.feed("k string, n int")
    source = feed.frame().selectExpr("k", f"rpad(concat(k, n), {size}, concat(k, n)) AS body")
    schema = "k string, before string, body string, parts binary"
    flow = braided.stream(source).groupBy("k").apply(Keep, schema)

    def body(k: str, n: int) -> str:
        return (f"{k}{n}" * size)[:size]

    keys = [f"key{n}" for n in range(4)]
    for n in range(3):
        feed.add([(k, n) for k in keys])
        # So small a limit makes every batch write a snapshot of what the one before has left.
        options = {"snapshot.minBytes": 1, "snapshot.factor": 0.01}
        query = lab.run(flow, channels=2, slots=2, **options, **drop_cache(lab))
    assert last_batch(query)["braided"]["operators"]["Keep"]["snapshotBytes"] > 0
    state = lab.state(flow)
    for k in keys:
        parts = [body(k, n).encode() for n in range(3)]
        assert state[k,] == {"text": body(k, 2), "parts": parts}
    # By digest: a difference of megabytes is nothing to read.
    assert Counter(map(_digest, lab.rows())) == Counter(
        _digest((k, before, body(k, n), b"".join(body(k, i).encode() for i in range(n + 1))))
        for k in keys
        for n in range(3)
        for before in [body(k, n - 1) if n else ""]
    )


def _digest(row: tuple[Any, ...]) -> str:
    return hashlib.blake2b(repr(row).encode()).hexdigest()


@pytest.mark.parametrize(
    ("hook", "batch_mb", "row_kb"), [("onRow", 160, 1), ("onBatch", 256, 1024)]
)
def test_memory_is_bounded_by_the_chunk_and_not_by_the_rows_of_a_key(
    lab: Lab, hook: str, batch_mb: int, row_kb: int
) -> None:
    rows = batch_mb * 1024 // row_kb

    class ByRow(braided.Operator):
        probe: ClassVar[MemoryProbe] = MemoryProbe()
        rows: int = 0
        bytes: int = 0

        def onRow(self, row: Any) -> Iterator[Any]:
            self.rows += 1
            self.bytes += len(row.body)
            if row.n == rows:
                yield self.rows, self.bytes, self.probe.peak_mb()

    class ByBatch(braided.Operator):
        probe: ClassVar[MemoryProbe] = MemoryProbe()
        rows: int = 0
        bytes: int = 0

        def onBatch(self, table: pa.Table) -> Iterator[Any]:
            self.rows += table.num_rows
            self.bytes += pc.sum(pc.binary_length(table["body"])).as_py()
            if table["n"][-1].as_py() == rows:
                yield self.rows, self.bytes, self.probe.peak_mb()

    feed = lab.feed("k string")
    feed.add([("the only one",)])
    numbered = feed.frame().select("k", F.explode(F.sequence(F.lit(1), F.lit(rows))).alias("n"))
    source = numbered.selectExpr("k", "n", f"repeat(chr(97 + n % 26), {row_kb << 10}) AS body")
    flow = (
        braided.stream(source)
        .groupBy("k")
        .apply(ByRow if hook == "onRow" else ByBatch, "rows bigint, bytes bigint, peak_mb bigint")
    )
    lab.run(flow, channels=1, slots=1)
    [(rows_seen, bytes_seen, peak_mb)] = lab.rows()
    assert (rows_seen, bytes_seen) == (rows, batch_mb << 20)
    # To hold the rows as Arrow and as Python would take twice the batch. A few chunks of 32 MB:
    print(f"{hook}: {batch_mb} MB of rows took {peak_mb} MB")
    assert peak_mb < batch_mb * 0.75


# -- batches without rows ------------------------------------------------------------------------


def test_empty_batches_commit_and_change_nothing(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    flow = (
        braided.stream(feed.frame(maxFilesPerTrigger=1))
        .filter("v >= 0")
        .groupBy("k")
        .apply(Tally, TALLY)
    )
    feed.add([])  # a file without rows
    lab.run(flow, channels=2, slots=4)
    feed.add([("a", -1)])  # rows of which none is left
    feed.add([("a", 1), ("b", 2)])
    feed.add([])
    feed.add([("a", 3)])
    lab.run(flow)
    lab.run(flow)  # nothing at all
    assert lab.state(flow) == {("a",): {"count": 2, "total": 4}, ("b",): {"count": 1, "total": 2}}
    batches = manifests_of(lab.checkpoint)
    assert [bool(m.operators["Tally"].new) for m in batches.values()] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert sorted(lab.rows()) == [("a", 1, 1), ("a", 2, 4), ("b", 1, 2)]


# -- output that does not fit --------------------------------------------------------------------

OUTPUT = "k string NOT NULL, n int, tags array<string>"
FITS = {"k": "a", "n": 1, "tags": ["x"]}
MISFITS: dict[str, tuple[Any, list[str]]] = {
    "text for int": ({**FITS, "n": "seven"}, ["'n'", "expected int", "'seven' of type str"]),
    "too large for int": ({**FITS, "n": 1 << 31}, ["'n'", "expected int", "2147483648"]),
    "null where there is none": ({**FITS, "k": None}, ["'k'", "a null", "string not null"]),
    "text for array": ({**FITS, "tags": "x"}, ["'tags'", "expected array<string>", "'x'"]),
    "unknown column": ({**FITS, "m": 1}, ["unknown column 'm'", "n:int"]),
    "too few values": (("a", 1), ["a row of 2 values", "('a', 1)", "k:string,n:int"]),
    "no row": (7, ["7 of type int", "not a row"]),
    "table with a column of text": (
        pa.table({"k": ["a"], "n": ["seven"], "tags": [["x"]]}),
        ["'n'", "expected int", "Arrow type string"],
    ),
}


def giving(given: Any) -> type[braided.Operator]:
    class Giver(braided.Operator):
        rows: int = 0

        def onBatch(self, table: pa.Table) -> Iterator[Any]:
            self.rows += table.num_rows
            yield given

    return Giver


def test_output_that_does_not_fit_names_column_and_types_and_loses_nothing(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    source = braided.stream(feed.frame()).groupBy("k")
    feed.add([("a", 1)])
    lab.run(source.apply(giving(FITS), OUTPUT), channels=1, slots=2)
    feed.add([("a", 2)])
    for case, (given, words) in MISFITS.items():
        error = failure(lab, source.apply(giving(given), OUTPUT))
        assert isinstance(error, OutputSchemaError), case
        for word in ("operator 'Giver'", *words):
            assert word in str(error), f"{case}: {error}"
        assert "getInt" not in str(error)
    lab.run(source.apply(giving(FITS), OUTPUT))
    assert lab.state(source.apply(giving(FITS), OUTPUT)) == {("a",): {"rows": 2}}
    assert lab.rows() == [("a", 1, ["x"])] * 2


def test_a_hook_that_returns_a_row_instead_of_yielding_it_is_told_to_yield(lab: Lab) -> None:
    class Returns(braided.Operator):
        def onRow(self, row: Any) -> Any:
            return {"k": row.k}

    feed = lab.feed(SCHEMA)
    feed.add([("a", 1)])
    error = failure(lab, braided.stream(feed.frame()).groupBy("k").apply(Returns, "k string"))
    assert isinstance(error, OutputSchemaError)
    assert "Returns.onRow returned dict" in str(error) and "yield" in str(error)


# -- state that does not fit ---------------------------------------------------------------------

UNFIT: dict[str, tuple[Callable[[Any], None], list[str]]] = {
    "text for int": (lambda op: setattr(op, "n", "1"), [".n ", "'1' of type str", "type int"]),
    "too large an int": (lambda op: setattr(op, "n", 1 << 64), [".n ", "64 bits"]),
    "int in a list of text": (lambda op: op.names.append(3), [".names[", "3 of type int"]),
    "a lock": (lambda op: setattr(op, "n", threading.Lock()), [".n ", "of type lock"]),
    "deleted": (lambda op: delattr(op, "n"), [".n was deleted", "type int"]),
}


def setting(change: Callable[[Any], None] | None) -> type[braided.Operator]:
    class Setter(braided.Operator):
        n: int = 0
        names: list[str] = []  # noqa: RUF012
        by: dict[str, float] = {}  # noqa: RUF012

        def onRow(self, row: Any) -> Iterator[Any]:
            self.n += row.v
            self.names.append(str(row.v))
            if row.v == 13 and change is not None:
                change(self)
            yield row

    return Setter


def test_a_state_value_that_does_not_fit_fails_the_batch_that_made_it(lab: Lab) -> None:
    feed = lab.feed(SCHEMA)
    source = braided.stream(feed.frame()).groupBy("k")
    feed.add([("a", 1), ("b", 1)])
    lab.run(source.apply(setting(None), SCHEMA), channels=2, slots=2)
    feed.add([("a", 2), ("b", 3), ("b", 13)])
    for case, (change, words) in UNFIT.items():
        error = failure(lab, source.apply(setting(change), SCHEMA))
        assert isinstance(error, StateValueError), case
        for word in ("Setter", *words, "k='b'", "batch: 1", "not committed"):
            assert word in str(error), f"{case}: {error}"
    assert list(manifests_of(lab.checkpoint)) == [0]
    lab.run(source.apply(setting(None), SCHEMA))
    assert lab.state(source.apply(setting(None), SCHEMA)) == {
        ("a",): {"n": 3, "names": ["1", "2"], "by": {}},
        ("b",): {"n": 17, "names": ["1", "3", "13"], "by": {}},
    }
    assert sorted(lab.rows()) == [("a", 1), ("a", 2), ("b", 1), ("b", 3), ("b", 13)]


# -- calls that have no meaning ------------------------------------------------------------------


@pytest.fixture(scope="module")
def after(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> braided.Stream:
    """A flow with an operator behind it."""
    feed = Lab(spark, tmp_path_factory.mktemp("after")).feed(SCHEMA)
    return braided.stream(feed.frame()).groupBy("k").apply(Tally, TALLY)


REFUSED_METHODS: dict[str, tuple[Any, ...]] = {
    "dropDuplicates": (["k"],),
    "drop_duplicates": (),
    "dropDuplicatesWithinWatermark": (),
    "distinct": (),
    "orderBy": ("k",),
    "sort": ("k",),
    "sortWithinPartitions": ("k",),
    "limit": (3,),
    "offset": (3,),
    "withWatermark": ("k", "1 second"),
    "groupby": ("k",),
    "agg": (F.max,),
    "rollup": ("k",),
    "cube": ("k",),
    "sample": (0.5,),
    "sampleBy": ("k", {}),
    "randomSplit": ([0.5, 0.5],),
    "count": (),
    "collect": (),
    "toPandas": (),
    "show": (),
    "head": (),
    "first": (),
    "take": (1,),
    "tail": (1,),
    "isEmpty": (),
    "cache": (),
    "persist": (),
    "checkpoint": (),
    "localCheckpoint": (),
    "describe": (),
    "summary": (),
    "foreach": (print,),
    "foreachPartition": (print,),
    "createOrReplaceTempView": ("view",),
    "repartition": (2,),
    "repartitionByRange": (2, "k"),
    "coalesce": (1,),
    "write": (),
    "rdd": (),
}
REFUSED_WITH_OTHERS = [
    "unionByName",
    "intersect",
    "intersectAll",
    "exceptAll",
    "subtract",
]


@pytest.mark.parametrize("method", REFUSED_METHODS)
def test_a_method_that_needs_more_than_a_row_is_refused_after_an_operator(
    after: braided.Stream, method: str
) -> None:
    with pytest.raises(UnsupportedError, match=rf"^{method}\(\) after a keyed operator: \w+"):
        getattr(after, method)(*REFUSED_METHODS[method])


@pytest.mark.parametrize("method", REFUSED_WITH_OTHERS)
def test_a_method_that_joins_in_another_stream_is_refused_after_an_operator(
    after: braided.Stream, method: str
) -> None:
    with pytest.raises(UnsupportedError, match=rf"^{method}\(\) after a keyed operator: \w+"):
        getattr(after, method)(after)


@pytest.mark.parametrize("method", ["pivot", "applyInPandas", "cogroup"])
def test_other_ways_to_group_are_refused(after: braided.Stream, method: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"groupBy\(\.\.\.\)\.{method}\(\).*\.apply\("):
        getattr(after.groupBy("k"), method)()


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.select(F.rand()),
        lambda s: s.withColumn("id", F.monotonically_increasing_id()),
        lambda s: s.filter(F.rand() < 0.5),
        lambda s: s.selectExpr("uuid()"),
        lambda s: s.select(F.udf(len)("k").alias("n")).select(F.shuffle(F.array("n"))),
    ],
)
def test_functions_that_are_not_deterministic_are_refused_after_an_operator(
    after: braided.Stream, call: Callable[[Any], Any]
) -> None:
    with pytest.raises(UnsupportedError, match="not deterministic"):
        call(after)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.select(F.sum("total")),
        lambda s: s.selectExpr("count(*)"),
        lambda s: s.withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("total"))),
        lambda s: s.select("k", F.max("total").over(Window.partitionBy("k"))),
        lambda s: s.selectExpr("k", "lag(total) OVER (ORDER BY count)"),
    ],
)
def test_aggregates_and_windows_in_columns_are_refused_after_an_operator(
    after: braided.Stream, call: Callable[[Any], Any]
) -> None:
    with pytest.raises(UnsupportedError, match=r"after a keyed operator.*one batch"):
        call(after)


def test_joins_that_would_give_out_static_rows_in_every_batch_are_refused(
    after: braided.Stream, spark: SparkSession
) -> None:
    static = spark.createDataFrame([("a", 1)], "k string, extra int")
    for how in ("right", "rightouter", "full", "outer"):
        with pytest.raises(UnsupportedError, match=r"join\(\) after a keyed operator"):
            after.join(static, "k", how)
    totals = static.groupBy("k").agg(F.sum("extra").alias("extra"))
    for how in ("inner", "left", "left_semi", "left_anti"):
        assert after.join(totals, "k", how).columns[:1] == ["k"]
    with pytest.raises(UnsupportedError, match="static"):
        after.join(spark.readStream.format("rate").load().selectExpr("string(value) AS k"), "k")


def test_what_is_no_streaming_dataframe_is_refused(spark: SparkSession) -> None:
    with pytest.raises(DefinitionError, match=r"readStream.*not streaming"):
        braided.stream(spark.range(3)).writeStream  # noqa: B018
    with pytest.raises(DefinitionError, match=r"readStream.*not streaming"):
        braided.stream(spark.range(3)).groupBy("id").agg({"id": "sum"})
    with pytest.raises(DefinitionError, match="takes a DataFrame, not list"):
        braided.stream([1, 2, 3])  # type: ignore[arg-type]


def test_what_is_no_operator_or_no_schema_is_refused(lab: Lab) -> None:
    grouped = braided.stream(lab.feed(SCHEMA).frame()).groupBy("k")
    for wrong in (Tally(), int, "Tally", lambda rows: rows):
        with pytest.raises(DefinitionError, match=r"a class derived from braided\.Operator"):
            grouped.apply(wrong, TALLY)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="'k strin'"):
        grouped.apply(Tally, "k strin")
    with pytest.raises(DefinitionError, match=r"timeMode is 'Sometimes'; it takes"):
        grouped.apply(Tally, TALLY, timeMode="Sometimes")


def test_spark_connect_is_refused_with_a_sentence(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = r"Spark Connect is not supported.*classic SparkSession"
    # Of the class that Spark Connect's frames have, whether or not its own needs are installed.
    remote = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})
    with pytest.raises(UnsupportedError, match=words):
        braided.stream(remote())
    frame = lab.feed(SCHEMA).frame()
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(UnsupportedError, match=words):
        braided.stream(frame)


def test_a_real_frame_of_spark_connect_is_refused() -> None:
    pytest.importorskip("grpc")
    pytest.importorskip("google.rpc")
    connect = pytest.importorskip("pyspark.sql.connect.dataframe")
    frame = object.__new__(connect.DataFrame)
    assert isinstance(frame, DataFrame)
    with pytest.raises(UnsupportedError, match="Spark Connect is not supported"):
        braided.stream(frame)


# -- keys, operators and options that are refused ------------------------------------------------


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("m", "map<string,int>"),
        ("struct(m) AS s", "map<string,int>"),
        ("array(m) AS a", "map<string,int>"),
        ("parse_json(k) AS j", "variant"),
        ("make_interval(1) AS i", "interval"),
    ],
)
def test_keys_that_have_no_equality_are_refused_by_name(lab: Lab, key: str, kind: str) -> None:
    source = lab.feed("k string, m map<string,int>").frame().selectExpr("*", f"{key}")
    name = key.rpartition(" ")[2]
    with pytest.raises(UnsupportedError, match=rf"groupBy\('{name}.*{kind}"):
        braided.stream(source.selectExpr(name)).groupBy(name)


def test_a_key_column_that_is_not_there_is_refused(lab: Lab) -> None:
    with pytest.raises(Exception, match=r"UNRESOLVED_COLUMN.*nothing"):
        braided.stream(lab.feed(SCHEMA).frame()).groupBy("nothing")


@pytest.mark.parametrize("what", ["lock", "file", "session", "frame"])
def test_an_operator_that_cannot_be_sent_to_workers_is_refused_at_start(
    lab: Lab, what: str
) -> None:
    with open(os.devnull, "w") as file:
        held: Any = {
            "lock": threading.Lock(),
            "file": file,
            "session": lab.spark,
            "frame": lab.spark.range(1),
        }[what]

        class Holder(braided.Operator):
            rows: int = 0

            def onRow(self, row: Any) -> Iterator[Any]:
                assert held is not None
                self.rows += 1
                yield row

        feed = lab.feed(SCHEMA)
        feed.add([("a", 1)])
        source = braided.stream(feed.frame()).groupBy("k")
        with pytest.raises(OperatorDefinitionError, match="operator 'Holder' can't be sent to"):
            lab.start(source.apply(Holder, SCHEMA), "noop")
    # Nothing was begun, and the checkpoint is free.
    assert committed_view(lab.checkpoint).batch == -1
    if what == "lock":
        lab.run(source.apply(giving(("a", 1)), SCHEMA).name("Holder"), "noop")
        assert committed_view(lab.checkpoint).batch == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chanels": 3}, [r"no option braided\.chanels", r"nearest is braided\.channels"]),
        ({"Slot": 3}, [r"no option braided\.Slot", r"nearest is braided\.slots"]),
        ({"snapshot.minbyte": 3}, [r"nearest is braided\.snapshot\.minBytes"]),
        ({"slots": 0}, [r"braided\.slots is '0'", "a whole number from 1 to 262144"]),
        ({"slots": 1.5}, [r"braided\.slots is '1.5'"]),
        ({"channels": "two"}, [r"braided\.channels is 'two'", "whole number"]),
        ({"snapshot.factor": -1}, [r"braided\.snapshot\.factor is '-1'", "above 0"]),
        ({"snapshot.minBytes": "1 parsec"}, [r"is '1 parsec'", "64m"]),
        ({"retainedManifests": 1}, [r"braided\.retainedManifests is '1'", "at least 2"]),
        ({"orderPreserving": "yes"}, [r"braided\.orderPreserving is 'yes'", "true or false"]),
        ({"cache.dir": "s3://bucket/x"}, [r"braided\.cache\.dir is 's3://bucket/x'", "local"]),
        ({"stopTimeout": "soon"}, [r"braided\.stopTimeout is 'soon'", "500ms"]),
        ({"slots": 0, "chanels": 1}, ["2 options are wrong", "chanels", "slots is '0'"]),
    ],
)
def test_an_unknown_option_or_a_wrong_value_is_refused_before_anything_is_touched(
    lab: Lab, after: braided.Stream, options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(OptionError) as raised:
        lab.start(after, "noop", **options)
    for word in words:
        raised.match(word)
    assert not Path(lab.checkpoint).exists()


def test_a_worker_that_dies_every_time_fails_the_batch_and_a_repaired_operator_goes_on(
    lab: Lab,
) -> None:
    def flow(deadly: int) -> braided.Stream:
        class Crashing(Tally):
            def onRow(self, row: Any) -> Iterator[Any]:
                if row.v == deadly:
                    os._exit(3)  # as a crash in native code would
                yield from super().onRow(row)

        rows = braided.stream(feed.frame()).groupBy("k")
        return rows.apply(Crashing, "k string, n int, t int").name("tally")

    feed = lab.feed("k string, v int")
    feed.add([("a", 1), ("b", 2)])
    error = failure(lab, flow(deadly=2))
    assert isinstance(error, WorkerLostError)
    assert "died 3 times in batch 0, which is not committed, with operators tally" in str(error)
    lab.run(flow(deadly=0))
    assert sorted(lab.rows()) == [("a", 1, 1), ("b", 1, 2)]
