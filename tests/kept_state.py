"""The state of a processor, as Spark's state reader and as `braided.state` tell it.

Both in one form: by key and by name of a variable, in words that tell types apart; lists and the
pairs of maps are sorted, and what is empty is left out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import braided
from processor_scenarios import shown

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
    for row in braided.state(checkpoint, spark).collect():
        key = shown(row.key)
        for name in row.state.__fields__:
            value = row.state[name]
            if isinstance(value, list):
                found[key][name] += [(item,) for item in value]
            elif isinstance(value, dict):
                found[key][name] += list(value.items())
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
