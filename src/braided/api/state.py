"""`braided.state` and `braided.stateDiff`: what a checkpoint holds, as DataFrames.

`StateSource`, the way there by `spark.read`, is in `inspect/`: it has no session.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from braided.errors import DefinitionError, StateNotFoundError
from braided.inspect.frames import changes_frame, state_frame
from braided.inspect.json_text import json_text
from braided.inspect.source import StateSource
from braided.inspect.versions import Versions
from braided.spark.interpreter import check_workers
from braided.spark.store_settings import session_checkpoint
from braided.store.history.manifest import View

__all__ = ["StateSource", "state", "stateDiff"]


def state(
    checkpoint: str | Path,
    spark: SparkSession,
    operator: str | None = None,
    version: int | None = None,
) -> DataFrame:
    """The committed state, one row per key: operator, slot, key, state, timers, batch.

    `key` is a struct of the grouping columns and `state` one of the operator's fields. Of a flow
    with several operators, of which none is named, the two are JSON text.

    `version` is a batch that is still retained; without one it is the newest at the time of the
    call, and stays that. The query may be running: nothing is locked.
    """
    store = session_checkpoint(spark, checkpoint)
    view = Versions(store).view(_batch(version, "version"))

    def one(name: str) -> DataFrame:
        check_workers(spark)
        return state_frame(spark, store, view, name)

    return _of(checkpoint, view, operator, one, ["key", "state"])


def stateDiff(
    checkpoint: str | Path,
    spark: SparkSession,
    before: int,
    after: int | None = None,
    operator: str | None = None,
) -> DataFrame:
    """The keys that differ between two versions, one row each.

    The columns are operator, slot, key, change ("added", "removed" or "changed"), before, after
    (the fields, null where the key is not there), timersBefore and timersAfter. `after` is the
    newest version if it is not given.
    """
    store = session_checkpoint(spark, checkpoint)
    versions = Versions(store)
    start = _batch(before, "before")
    view = versions.view(_batch(after, "after"))
    if start is None:
        raise DefinitionError("stateDiff compares with a version: before=..., a batch id")
    if start > view.batch:
        raise DefinitionError(f"stateDiff: before={before} comes after batch {view.batch}")
    versions.view(start)  # it is there

    def one(name: str) -> DataFrame:
        check_workers(spark)
        return changes_frame(spark, store, start, view, name)

    return _of(checkpoint, view, operator, one, ["key", "before", "after"])


def _batch(version: int | None, name: str) -> int | None:
    """The batch that an argument of that name means; None for the newest."""
    if version is None or (isinstance(version, int) and not isinstance(version, bool)):
        return version
    raise DefinitionError(f"{name} is a batch id, an int, not {version!r}")


def _of(
    checkpoint: str | Path,
    view: View,
    operator: str | None,
    one: Callable[[str], DataFrame],
    typed: list[str],
) -> DataFrame:
    """One operator's frame, or those of all with their typed columns as JSON."""
    names = list(view.operators)
    if operator is not None and operator not in names:
        present = ", ".join(map(repr, names))
        raise StateNotFoundError(
            f"{checkpoint} has no operator {operator!r} at batch {view.batch}; it has {present}"
        )
    if operator is not None or len(names) == 1:
        return one(operator if operator is not None else names[0])
    frames = []
    for name in names:
        frame = one(name)
        types = {column: frame.schema[column].dataType for column in typed}
        text = {
            column: F.col(column) if type.typeName() == "string" else json_text(F.col(column), type)
            for column, type in types.items()
        }
        frames.append(frame.withColumns(text))
    return reduce(DataFrame.union, frames)
