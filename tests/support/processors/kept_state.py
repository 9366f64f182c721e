"""The state of a processor, as Spark's state reader and as `braided.state` tell it.

Both in one form: by key and by name of a variable, in words that tell types apart; lists and the
pairs of maps are sorted, and what is empty is left out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType

import braided
from support.processors.scenario import shown

__all__ = ["braided_state", "native_state"]

TIMERS = "(timers)"
State = dict[str, dict[str, Any]]


def native_state(spark: SparkSession, checkpoint: str) -> State:
    """By Spark's own reader, one variable after the other."""
    rows = spark.read.format("state-metadata").load(checkpoint).collect()
    told = json.loads(rows[0].operatorProperties)
    found: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))

    def read(option: str, value: str) -> DataFrame:
        reader = spark.read.format("statestore").option("path", checkpoint)
        return reader.option(option, value).load()

    for variable in told["stateVariables"]:
        kind, name = variable["stateVariableType"], variable["stateName"]
        if kind not in ("ValueState", "ListState", "MapState"):
            continue  # timers have a name there, too
        for row in read("stateVarName", name).drop("partition_id").collect():
            key, *pieces = row
            if None not in pieces:
                found[shown(key)][name].append(tuple(pieces))
    if told["timeMode"] != "NoTime":
        for row in read("readRegisteredTimers", "true").collect():
            found[shown(row.key)][TIMERS].append((row.expiration_timestamp_ms,))
    return _ordered(found)


def braided_state(spark: SparkSession, checkpoint: str) -> State:
    found: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    state = braided.state(checkpoint, spark)
    kinds = {field.name: field.dataType for field in state.schema["state"].dataType}
    # As entries: Python has no dict whose keys have lists in them.
    columns = [
        F.map_entries(f"state.`{name}`") if isinstance(kind, MapType) else F.col(f"state.`{name}`")
        for name, kind in kinds.items()
    ]
    for row in state.select("key", "timers", *columns).collect():
        key = shown(row.key)
        for name, value in zip(kinds, row[2:], strict=True):
            if isinstance(kinds[name], MapType):
                found[key][name] += [tuple(entry) for entry in value or ()]
            elif isinstance(kinds[name], ArrayType):
                found[key][name] += [(item,) for item in value or ()]
            elif value is not None:
                found[key][name].append((value,))
        found[key][TIMERS] += [(round(1000 * moment.timestamp()),) for moment in row.timers or ()]
    return _ordered(found)


def _ordered(found: dict[str, dict[str, list[Any]]]) -> State:
    told = {
        key: {name: sorted(map(shown, pieces)) for name, pieces in state.items() if pieces}
        for key, state in found.items()
    }
    return {key: state for key, state in told.items() if state}
