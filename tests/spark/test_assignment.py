"""Keys that are assigned to slots: rows and state come there, of all operators with one batch; and
a query that starts with what a file says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import braided
from braided.bench.routing import RoutingSize, routing_cost
from braided.bench.session import Arena
from braided.control.routing.key_moves import slot_of_key
from braided.control.routing.table import RoutingTable
from braided.errors import OptionError
from braided.query.first_routing import slots_of_parts
from braided.store.slots.channel_state import ChannelState, SnapshotLimits
from support.assigned_operators import Adds
from support.reassigning import Reassigner
from support.stream_harness import Lab, committed_view, manifests_of

SCHEMA = "k string, n bigint"
KEYS = [f"key {number}" for number in range(40)]


def is_where_the_table_says(lab: Lab, query: Any, name: str) -> int:
    """Every key's state is in the slot of the table in effect; how many keys are assigned."""
    table, version = query.routing()[name], committed_view(lab.checkpoint).operators[name]
    state = ChannelState(
        query._opened.engine._steps.processing._plan.location.store,
        None,
        name,
        version,
        SnapshotLimits(),
    )
    hashes = {
        key: (hash, check)
        for key, hash, check in zip(
            table.assigned.keys.to_pylist(),
            table.assigned.hashes.tolist(),
            table.assigned.checks.tolist(),
            strict=True,
        )
    }
    for slot in range(version.meta.slots):
        for key, _ in state.slot(slot).records():
            if key in hashes:
                assert slot_of_key(table, *hashes[key]) == slot
    return len(hashes)


def routing_files(directory: Path, parts: dict[str, int], count: int) -> Path:
    directory.mkdir()
    for name in ("first", "second"):
        table = pa.table({"k": list(parts), "__part": pa.array(parts.values(), pa.int32())})
        table = table.replace_schema_metadata({"parts": str(count)})
        pq.write_table(table, directory / f"{name}.parquet")
    return directory


def test_a_query_starts_with_a_file_and_goes_on_with_what_is_proposed(
    lab: Lab, tmp_path: Path
) -> None:
    feed = lab.feed("k string, n bigint")
    before = lab.spark.createDataFrame([(key, 100) for key in KEYS[:20]], "k string, n int")
    first = (
        braided.stream(feed.frame())
        .groupBy("k")
        .apply(Adds, SCHEMA, initialState=before)
        .name("first")
    )
    flow = first.groupBy("k").apply(Adds, SCHEMA).name("second")
    parts = {key: number % 2 for number, key in enumerate(KEYS)}
    files = routing_files(tmp_path / "routing", parts, 2)
    options: dict[str, Any] = {"slots": 16, "balance": "static"}
    with pytest.raises(OptionError, match="2 parts, and operator 'first' starts with 1 channels"):
        lab.start(flow, channels=1, routing=str(files), **options)
    query = lab.start(flow, channels=4, routing=str(files), **options)
    rows = 0
    reassigner = Reassigner(5)
    for batch in range(6):
        feed.add([(key, 0) for key in KEYS])
        query.processAllAvailable()
        rows += 1
        assert sum(is_where_the_table_says(lab, query, name) for name in ("first", "second")) > 0
        if batch == 0:
            for name in ("first", "second"):
                table = query.routing()[name]
                assert len(table.assigned) == len(KEYS)
                of_key = dict(
                    zip(
                        table.assigned.keys.to_pylist(),
                        table.slots[table.assigned.slots] % 2,
                        strict=True,
                    )
                )
                assert sorted(of_key.values()) == [0] * 20 + [1] * 20
        if batch == 3:
            query.stop()  # what holds by then is in the manifest, and the file is not read again
            held = query.routing()["first"].assigned
            query = lab.start(flow, routing=str(tmp_path / "gone"), **options)
            assert query.routing()["first"].assigned == held
        reassigner.propose(query)
    # Timers that were due in a batch that moved their keys have fired.
    for _ in range(3):
        feed.add([("last", 0)])
        query.processAllAvailable()
    query.stop()
    state = lab.state(flow, "first")
    assert {key[0]: fields["n"] for key, fields in state.items() if key[0] != "last"} == {
        key: rows + (100 if key in KEYS[:20] else 0) for key in KEYS
    }
    assert {fields["told"] for key, fields in state.items() if key[0] != "last"} == {rows}
    epochs = [
        [part.epoch for part in manifest.operators.values()]
        for manifest in manifests_of(lab.checkpoint).values()
    ]
    assert all(one == two for one, two in epochs), "both operators change with one batch"


def test_files_that_say_nothing_of_use_are_refused(lab: Lab, tmp_path: Path) -> None:
    feed = lab.feed(SCHEMA)
    flow = braided.stream(feed.frame()).groupBy("k").apply(Adds, SCHEMA).name("first")
    with pytest.raises(OptionError, match="no such directory"):
        lab.start(flow, routing=str(tmp_path / "nothing"))
    files = routing_files(tmp_path / "other", {"a": 0, "b": 3}, 2)
    with pytest.raises(OptionError, match="parts from 0 to 3"):
        lab.start(flow, channels=4, routing=str(files))
    (files / "first.parquet").write_bytes(b"?")
    with pytest.raises(OptionError, match="can't be read as keys of operator 'first', columns k"):
        lab.start(flow, routing=str(files))
    (files / "first.parquet").unlink()
    with pytest.raises(OptionError, match="no operator 'second' in this query; it has first"):
        lab.start(flow, routing=str(files))


def test_slots_of_a_part_are_those_of_its_channels() -> None:
    table = RoutingTable(0, 5, np.arange(32) % 5)
    part = np.array([0, 1, 0, 1, 1])
    slots = slots_of_parts(table, 2, part, np.array([-7, 3, 8, 2**62, -(2**63)]))
    assert (table.slots[slots] % 2 == part).all()


def test_a_plan_does_not_grow_with_assigned_keys(lab: Lab, tmp_path: Path) -> None:
    size = RoutingSize(keys=2_000, rows=6_000, pairs=1, warm=1)
    cost = routing_cost(Arena(lab.spark, tmp_path), size, lambda _: None)
    assert cost["right"] and cost["plan_lines_added"] == 0
