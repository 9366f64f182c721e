"""Braided: keyed state that can move, on Spark Structured Streaming.

Here are the names that users import, each fetched from its module when it is asked for; the
packages below are not for users. docs/architecture.md says what lives in which.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from braided.release import VERSION

if TYPE_CHECKING:
    from braided.api.connect import connect
    from braided.api.dead_letters import deadLetters, lateRows
    from braided.api.grouped import GroupedStream
    from braided.api.query import ElasticQuery
    from braided.api.state import StateSource, state, stateDiff
    from braided.api.stream import Stream, stream
    from braided.api.writer import start
    from braided.dict_functions.decorator import managed
    from braided.errors import BraidedError
    from braided.operator.columns import ColumnOperator, matrix, turns
    from braided.operator.definition import Operator
    from braided.operator.merging import merged
    from braided.operator.params import Param
    from braided.operator.renaming import renamed

__all__ = [
    "BraidedError",
    "ColumnOperator",
    "ElasticQuery",
    "GroupedStream",
    "Operator",
    "Param",
    "StateSource",
    "Stream",
    "connect",
    "deadLetters",
    "lateRows",
    "managed",
    "matrix",
    "merged",
    "renamed",
    "start",
    "state",
    "stateDiff",
    "stream",
    "turns",
]

__version__ = VERSION

_HOME = {
    "BraidedError": "braided.errors",
    "ColumnOperator": "braided.operator.columns",
    "ElasticQuery": "braided.api.query",
    "GroupedStream": "braided.api.grouped",
    "Operator": "braided.operator.definition",
    "Param": "braided.operator.params",
    "StateSource": "braided.api.state",
    "Stream": "braided.api.stream",
    "connect": "braided.api.connect",
    "managed": "braided.dict_functions.decorator",
    "start": "braided.api.writer",
    "deadLetters": "braided.api.dead_letters",
    "matrix": "braided.operator.columns",
    "lateRows": "braided.api.dead_letters",
    "merged": "braided.operator.merging",
    "renamed": "braided.operator.renaming",
    "state": "braided.api.state",
    "stateDiff": "braided.api.state",
    "stream": "braided.api.stream",
    "turns": "braided.operator.columns",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, because a worker process needs a small part of this only.
    if name == "testing":
        return import_module("braided.testing")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'braided' has no attribute {name!r}")
