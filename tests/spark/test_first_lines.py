"""What a user sees first of an error: what happened, and then with which key and row, and where."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import braided
from braided.errors import PublishError
from support import failing_parts as parts
from support.stream_harness import Feed, Lab

OUT = "k string, v int"
LINES_MAX = 15
DIVISION = "ZeroDivisionError: integer division or modulo by zero"
TEXT = "expected int, got 'x' of type str"


class Case(NamedTuple):
    flow: Callable[[Any], Any]
    first: str
    """How the first line begins."""
    line: str = ""
    """The line of the user's that is named."""
    key: str = "'k3'"
    row: str = "3"
    """What is shown as the row has this in it."""


def by_key(operator: Any) -> Callable[[Any], Any]:
    return lambda rows: braided.stream(rows).groupBy("k").apply(operator, OUT)


def processed(processor: Any, pandas: bool = False) -> Callable[[Any], Any]:
    def flow(rows: Any) -> Any:
        grouped = braided.stream(rows).groupBy("k")
        way = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
        return way(processor, OUT, "Append", "None")

    return flow


def managed(function: Any) -> Callable[[Any], Any]:
    return lambda rows: braided.stream(rows).apply(braided.managed(function), OUT)


def in_groups(rows: Any) -> Any:
    grouped = braided.stream(rows).groupBy("k")
    return grouped.applyInPandasWithState(
        parts.frames_keep_text, OUT, "n int", "append", "NoTimeout"
    )


CASES = {
    "operator raises": Case(
        by_key(parts.Raises),
        f"OperatorError: operator 'Raises' raised {DIVISION}",
        "yield row.k, 1 // (row.v - 3)",
    ),
    "operator gives": Case(
        by_key(parts.GivesText),
        f"OutputSchemaError: operator 'GivesText', output column 'v': {TEXT}",
        'yield row.k, "x" if row.v == 3 else 1',
        row="('k3', 'x')",
    ),
    "operator keeps": Case(
        by_key(parts.KeepsText),
        "StateValueError: KeepsText.n holds 'x' of type str",
        'self.n = "x" if row.v == 3 else 1',
    ),
    "timer raises": Case(
        by_key(parts.RaisesLater),
        "OperatorError: operator 'RaisesLater' raised LookupError: nothing is known of it",
        'raise LookupError("nothing is known of it")',
        row="timer of 1",
    ),
    "columns raise": Case(
        by_key(parts.ColumnsRaise),
        "OperatorError: operator 'ColumnsRaise' raised LookupError: nothing is known of it",
        'raise LookupError("nothing is known of it")',
        key="the first of 4",
        row="4 rows, the first {'k': ",
    ),
    "columns give": Case(
        by_key(parts.ColumnsGiveText),
        "OutputSchemaError: operator 'ColumnsGiveText', output column 'v': expected int",
        'return state, {"k": self.keys["k"], "v": ["x"] * len(state)}',
        key="the first of 4",
        row="4 rows, the first {'k': ",
    ),
    "columns keep": Case(
        by_key(parts.ColumnsKeepText),
        "StateValueError: operator 'ColumnsKeepText': onRows returned ",
        'return {"n": np.array(["x"] * len(state))}',
        key="the first of 4",
        row="4 rows, the first {'k': ",
    ),
    "processor raises": Case(
        processed(parts.ProcessorRaises()),
        f"OperatorError: operator 'ProcessorRaises' raised {DIVISION}",
        "yield Row(k=key[0], v=1 // (row.v - 3))",
        row="Row(k='k3', v=3)",
    ),
    "processor gives": Case(
        processed(parts.ProcessorGivesText()),
        f"OutputSchemaError: processor 'ProcessorGivesText', output column 'v': {TEXT}",
        'yield Row(k=key[0], v="x" if row.v == 3 else 1)',
        row="Row(k='k3', v='x')",
    ),
    "processor keeps": Case(
        processed(parts.ProcessorKeepsText()),
        "StateValueError: Error updating state 'n': field 'n' takes int, not 'x' of type str.",
        'self.n.update(("x" if row.v == 3 else 1,))',
        row="Row(k='k3', v=3)",
    ),
    "frames give": Case(
        processed(parts.FramesGiveText(), pandas=True),
        "OutputSchemaError: processor 'FramesGiveText' gave a DataFrame that does not fit",
        'yield pd.DataFrame({"k": [key[0]], "v": ["x" if 3 in frame["v"].array else 1]})',
        row="'v': ['x']",
    ),
    "groups keep": Case(
        in_groups,
        "StateValueError: Error updating state 'groupState': field 'n' takes int, not 'x'",
        "def frames_keep_text(key",
        row="{'k': 'k3', 'v': 3}",
    ),
    "function raises": Case(
        managed(parts.raises),
        f"OperatorError: operator 'raises' raised {DIVISION}",
        "shares[row.k] = 1 // (row.v - 3)",
    ),
    "function gives": Case(
        managed(parts.gives_text),
        f"OutputSchemaError: operator 'gives_text', output column 'v': {TEXT}",
        'yield {"k": row.k, "v": "x" if row.v == 3 else 1}',
        row="'v': 'x'",
    ),
    "function keeps": Case(
        managed(parts.keeps_text),
        "StateValueError: keeps_text.texts",
        'texts[row.k] = "x" if row.v == 3 else 1',
    ),
}


@pytest.fixture(scope="module")
def feed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Feed:
    made = Feed(spark, tmp_path_factory.mktemp("first-lines") / "in", "k string, v int")
    made.add([(f"k{v}", v) for v in range(4)])
    return made


def failed(query: Any) -> list[str]:
    """The lines of the error of a query, which are the same whichever way one asks."""
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination()
    lines = str(raised.value).splitlines()
    assert str(query.exception()).splitlines() == lines
    assert len(lines) <= LINES_MAX, lines
    assert lines[-1].startswith("Spark says: [STREAM_FAILED]")
    return lines


@pytest.mark.parametrize("name", CASES)
def test_the_error_of_a_step_comes_first_with_key_row_and_line(
    lab: Lab, feed: Feed, name: str
) -> None:
    case = CASES[name]
    lines = failed(
        lab.start(case.flow(feed.frame()), "noop", {"availableNow": True}, channels=1, slots=2)
    )
    assert lines[0].startswith(case.first), lines[0]
    told = "\n".join(lines)
    [key] = re.findall("^  key:   (.*)", told, re.M)
    [row] = re.findall("^  row:   (.*)", told, re.M)
    assert case.key in key and case.row in row, told
    assert "  batch: 0, which is not committed: fix the operator and start the query" in told
    assert re.search(r'^  File ".*failing_parts.py", line \d+, in ', told, re.M)
    assert f"    {case.line}" in told
    assert "src/braided" not in told and "py4j" not in told


def test_the_error_of_a_step_of_sparks_or_of_a_sink_comes_first(lab: Lab, feed: Feed) -> None:
    passing = by_key(parts.Passes)(feed.frame())
    writers: dict[str, tuple[Any, str, str]] = {
        "step": (
            passing.withColumn("w", F.udf(parts.divides, "int")("v")).writeStream.format("noop"),
            f"BatchError: a step of the flow, or writing its output, failed: {DIVISION}",
            "return 1 // (v - 3)",
        ),
        "foreachBatch": (
            passing.writeStream.foreachBatch(parts.refuses),
            "PublishError: the sink foreachBatch raised KeyError: 'no such account'",
            'raise KeyError("no such account")',
        ),
        "a job of foreachBatch": (
            passing.writeStream.foreachBatch(parts.computes),
            "PublishError: the sink foreachBatch raised ArithmeticException: [DIVIDE_BY_ZERO]",
            'rows.selectExpr("1 div (v - 3)").collect()',
        ),
        "foreach": (
            passing.writeStream.foreach(parts.Sends()),
            "PublishError: the sink foreach raised ConnectionError: nobody listens",
            'raise ConnectionError("nobody listens")',
        ),
        "format": (
            passing.writeStream.format("jdbc").option("url", "jdbc:no:one").option("dbtable", "t"),
            "PublishError: the sink jdbc t raised SQLException: No suitable driver",
            "",
        ),
    }
    for number, (name, (writer, first, line)) in enumerate(writers.items()):
        writer.option("checkpointLocation", str(lab.home / f"c{number}"))
        lines = failed(writer.trigger(availableNow=True).start())
        assert lines[0].startswith(first), (name, lines)
        assert line in "\n".join(lines), (name, lines)
        committed = "" if first.startswith("PublishError") else "not "
        assert f"  batch: 0, which is {committed}committed" in "\n".join(lines), (name, lines)


def test_an_output_path_that_cannot_be_is_named_at_the_start(lab: Lab, feed: Feed) -> None:
    in_the_way = Path(lab.home / "file")
    in_the_way.touch()
    flow = by_key(parts.Raises)(feed.frame())
    writer = flow.writeStream.format("parquet").option("checkpointLocation", str(lab.checkpoint))
    with pytest.raises(PublishError, match=r"^the output path .*/file/out can't be written: "):
        writer.start(str(in_the_way / "out"))
