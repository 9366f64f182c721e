"""A query whose checkpoint and output are on HDFS; `make hdfs` runs it."""

from __future__ import annotations

import pytest

import braided
from braided.errors import FencedError
from support.bad_input_harness import Tally
from support.stream_harness import Lab

SCHEMA = "k string, v bigint"
OUTPUT = "k string, count bigint, total bigint"


def test_a_query_on_hdfs_goes_on_where_it_was(lab: Lab, hdfs: str) -> None:
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Tally, OUTPUT).name("tally")
    writer = flow.writeStream.format("parquet").option("checkpointLocation", f"{hdfs}/checkpoint")
    writer.option("braided.channels", 2)
    for value in (1, 2):
        feed.add([(k, value) for k in "abc"])
        query = writer.option("braided.cache.dir", str(lab.home / f"cache-{value}")).start(
            f"{hdfs}/out"
        )
        query.processAllAvailable()
        with pytest.raises(FencedError):
            writer.start(f"{hdfs}/out")
        query.rescale(3)
        query.processAllAvailable()
        query.stop()
    rows = lab.spark.read.parquet(f"{hdfs}/out").collect()
    expected = [(k, n, total) for k in "abc" for n, total in ((1, 1), (2, 3))]
    assert sorted(map(tuple, rows)) == expected
    assert braided.state(f"{hdfs}/checkpoint", lab.spark).count() == 3
