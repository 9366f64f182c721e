"""Parts of keys that occur together, by rows of the past: the table that a query can start with.

Spark counts how often keys of operators that follow each other occur together; `control/locality`
cuts the graph of that. A part of the rows is held out, so that what is said of the table is not
what it was made from. Each operator's table has the columns of its key and the number of the part,
from 0 on, as `query/first_routing.py` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braided.control.locality.forecast import HeldOut, forecast
from braided.control.locality.graph import (
    ALPHA,
    HostRoom,
    KeyGraph,
    Numbers,
    host_loads,
    local_share,
)
from braided.control.locality.partition import partition
from braided.query.first_routing import PART, PARTS
from braided.spark.sql_text import quoted

__all__ = ["PAIRS_MOST", "plan_parts"]

PAIRS_MOST = 1_000_000
_HOLD_EVERY = 8


def plan_parts(
    rows: DataFrame,
    keys: Sequence[tuple[str, ...]],
    names: Sequence[str],
    hosts: int,
    alpha: float = ALPHA,
    pairs_max: int = PAIRS_MOST,
) -> tuple[dict[str, pa.Table], dict[str, Any]]:
    """The parts of keys by operator, and what is to be expected of them."""
    columns = [f"struct({', '.join(map(quoted, key))}) AS k{n}" for n, key in enumerate(keys)]
    # By the row and not by what is in it: rows that are alike would all be held out, or none.
    lot = f"pmod(xxhash64(monotonically_increasing_id()), {_HOLD_EVERY}) AS lot"
    keyed = rows.selectExpr(*columns, lot).persist()
    try:
        counted = [_count(keyed, n, "lot > 0", pairs_max) for n in range(len(keys) - 1)]
        held = [_count(keyed, n, "lot = 0", pairs_max) for n in range(len(keys) - 1)]
        total = float(keyed.filter("lot > 0").count())
    finally:
        keyed.unpersist()
    known, numbers = _numbered(counted, len(keys))
    first = np.cumsum([0, *map(len, known)])
    ends, weight = [np.zeros((0, 2), dtype=np.int64)], [np.zeros(0)]
    load = np.zeros(int(first[-1]))
    for n, table in enumerate(counted):
        pair = numbers[n] + first[n : n + 2]
        rows_of_pair = table["count"].to_numpy().astype(np.float64)
        ends.append(pair)
        weight.append(rows_of_pair)
        # A key in the middle of a chain is on both sides: its rows count once.
        np.add.at(load, pair[:, 1], rows_of_pair)
        if n == 0:
            np.add.at(load, pair[:, 0], rows_of_pair)
    operator_of = np.repeat(np.arange(len(keys)), [len(each) for each in known])
    graph = KeyGraph(len(keys), operator_of, load, np.concatenate(ends), np.concatenate(weight))
    seen = np.bincount(operator_of, load, len(keys))
    rest = np.maximum(total - seen, 0.0)[:, None] / hosts
    room = HostRoom(np.full((len(keys), hosts), 1.0 / hosts), np.repeat(rest, hosts, axis=1))
    part = partition(graph, room, alpha)
    tables = {
        name: _table(known[n], keys[n], counted, n, part[first[n] : first[n + 1]], hosts)
        for n, name in enumerate(names)
    }
    loads = host_loads(graph, room, part)
    told: dict[str, Any] = {
        "hosts": hosts,
        "rows": int(total),
        "keys": {name: len(known[n]) for n, name in enumerate(names)},
        "pairs": int(graph.weight.size),
        "locality_hash": 1 / hosts,
        "locality_fitted": local_share(graph, part),
        "imbalance": float((loads / loads.mean(axis=1, keepdims=True)).max()),
    }
    expected = forecast(_held_out_rows(held, known, first), part, room)
    if expected is not None:
        told |= {
            "locality_expected": expected.locality,
            "imbalance_expected": expected.imbalance,
            "share_of_rows_known": expected.known,
        }
    return tables, told


def _count(keyed: DataFrame, n: int, where: str, pairs_max: int) -> pa.Table:
    """The most frequent pairs of two keys in a row, as columns of their structs, and counts."""
    pairs = keyed.filter(where).groupBy(f"k{n}", f"k{n + 1}").count()
    most = pairs.orderBy(F.desc("count"), f"k{n}", f"k{n + 1}").limit(pairs_max)
    return most.toArrow()


def _numbered(counted: Sequence[pa.Table], operators: int) -> tuple[list[list[Any]], list[Numbers]]:
    """The keys of each operator, and the numbers of the keys of each pair among those."""
    known: list[dict[Any, int]] = [{} for _ in range(operators)]
    numbers = []
    for n, table in enumerate(counted):
        sides = []
        for side in (n, n + 1):
            found = known[side]
            values = [tuple(value.values()) for value in table[f"k{side}"].to_pylist()]
            sides.append([found.setdefault(value, len(found)) for value in values])
        numbers.append(np.array(sides, dtype=np.int64).T.reshape(-1, 2))
    return [list(each) for each in known], numbers


def _held_out_rows(
    held: Sequence[pa.Table], known: Sequence[list[Any]], first: Numbers
) -> list[HeldOut]:
    number = [
        {key: int(first[n]) + i for i, key in enumerate(keys)} for n, keys in enumerate(known)
    ]
    found = []
    for n, table in enumerate(held):
        sides = [
            [number[side].get(tuple(value.values()), -1) for value in table[f"k{side}"].to_pylist()]
            for side in (n, n + 1)
        ]
        keys = np.array(sides, dtype=np.int64).T.reshape(-1, 2)
        found.append(HeldOut((n, n + 1), keys, table["count"].to_numpy().astype(np.float64)))
    return found


def _table(
    keys: list[Any],
    columns: tuple[str, ...],
    counted: Sequence[pa.Table],
    operator: int,
    part: Numbers,
    hosts: int,
) -> pa.Table:
    """Keys by their columns, in the types that these have, and their parts."""
    kinds = counted[min(operator, len(counted) - 1)].schema.field(f"k{operator}").type
    arrays = [pa.array([key[i] for key in keys], kinds.field(i).type) for i in range(len(columns))]
    table = pa.table([*arrays, pa.array(part, pa.int32())], names=[*columns, PART])
    return table.replace_schema_metadata({PARTS: str(hosts).encode()})
