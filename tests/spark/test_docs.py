"""What README and docs show runs, and says what the code does."""

from __future__ import annotations

import json
import linecache
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from braided.api.query import ElasticQuery

ROOT = Path(__file__).parents[2]
RUN = ("README.md", "docs/aggregates.md", "docs/flows.md", "docs/managed.md", "docs/operators.md")
RUN += (
    "docs/columnar.md",
    "docs/processors.md",
    "docs/sinks.md",
    "docs/state.md",
    "docs/testing.md",
    "docs/migrating.md",
)


RUN_ELSEWHERE = {
    "docs/control.md": "tests/control/test_docs.py",
    "docs/postgres.md": "tests/spark/test_postgres.py",
}


def test_every_example_is_run_or_says_that_it_is_not() -> None:
    """With ```python no-run, for what needs a cluster, say."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
    shown = {str(page.relative_to(ROOT)) for page in pages if "```python\n" in page.read_text()}
    assert shown == {*RUN, *RUN_ELSEWHERE}
    for page, test in RUN_ELSEWHERE.items():
        assert page in (ROOT / test).read_text()


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


@pytest.fixture
def names(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """What the examples take for granted: a session, files with a few rows, directories."""

    def files(name: str, rows: list[dict[str, Any]]) -> str:
        (tmp_path / name).mkdir()
        text = "\n".join(json.dumps(row) for row in rows)
        (tmp_path / name / "rows.json").write_text(text)
        return str(tmp_path / name)

    def one_batch(query: ElasticQuery, timeout: int | None = None) -> bool:
        deadline = time.monotonic() + 120
        while query.lastProgress is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert query.lastProgress is not None
        return False

    # A reader of an example has time to watch it; a test has not.
    monkeypatch.setattr(ElasticQuery, "awaitTermination", one_batch)
    found: dict[str, Any] = {
        "__name__": "__main__",
        "spark": spark,
        "clicks_path": files("clicks", [{"user": "u", "page": "/"}, {"user": "v", "page": "/a"}]),
        "payments_path": files("payments", [{"account": "a", "amount": n / 2} for n in range(4)]),
        "later_path": files("later", [{"account": "a", "amount": 2.0}]),
        "quotes_path": files("quotes", [{"stock": "s", "price": 2.5}]),
        "orders_path": files("orders", [{"stock": "s", "qty": 4}]),
        "edges_path": files("edges", [{"node": 1, "neighbour": 2}, {"node": 2, "neighbour": 1}]),
        "checkpoint": str(tmp_path / "checkpoint"),
        "output": str(tmp_path / "output"),
    }
    yield found
    spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    for value in found.values():
        if isinstance(value, ElasticQuery):
            value.stop()


@pytest.mark.parametrize("page", RUN)
def test_the_examples_of_a_page_run_one_after_the_other(
    page: str, names: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    for number, block in enumerate(blocks(page)):
        query = names.get("query")
        if isinstance(query, ElasticQuery) and query.isActive:
            query.processAllAvailable()  # the next lines look at what it did
        # Not with this file's __future__ imports, which an example does not have.
        file = f"{page}, example {number + 1}"
        linecache.cache[file] = (len(block), None, block.splitlines(True), file)
        exec(compile(block, file, "exec", dont_inherit=True), names)
    if page == "docs/operators.md":
        printed = capfd.readouterr().out
        assert "Caller.line can't be a state field" in printed
        assert "|      a|    4|  3.0|" in printed
        assert '|Strict  |{"account": "a"}|{"account": "a", "amount": 1.5}|0    |' in printed
    if page == "docs/migrating.md":
        assert "|      a|       5|   5.0|" in capfd.readouterr().out
    if page == "docs/flows.md":
        outputs = {}
        for name in ("valued", "components"):
            found: list[Any] = []
            writer = names[name].writeStream.trigger(availableNow=True)
            query = writer.foreachBatch(lambda df, _, found=found: found.extend(df.collect()))
            names["query"] = query.start()
            names["query"]._query.awaitTermination(120)
            outputs[name] = [tuple(row) for row in found]
        assert outputs["valued"] == [("s", 4, 10.0)]
        assert (2, 1) in outputs["components"]
        assert names["spark"].read.parquet(f"{names['output']}/peaks").count() == 3
    if page == "docs/state.md":
        printed = capfd.readouterr().out
        assert "the state of batch 12 is not retained" in printed
        assert "|{a}|changed|{4, 3.0}|{5, 4.0}|" in printed
        assert "|      b|       2| 18.0|" in printed  # the rows of the source come on top
    if page == "docs/sinks.md":
        printed = capfd.readouterr().out
        assert "[('a', 3.0, 0)]" in printed  # SQLite
        assert "|      a|  3.0|    0|" in printed  # Derby
        assert "[{'account': 'a', 'total': 3.0}]" in printed  # an upsert into Delta
        assert names["spark"].table("balances").count() == 4
        names["spark"].sql("DROP TABLE balances")
    if page == "docs/managed.md":
        printed = capfd.readouterr().out
        assert "docs/managed.md, example 3:3: average: `last.values()` is not at one key" in printed
        assert "|      a|   1.5|       3|" in printed


def test_the_first_program_of_the_readme_is_the_example_file() -> None:
    assert blocks("README.md")[0] == (ROOT / "examples/threshold.py").read_text()
