"""Braided: keyed state that can move, on Spark Structured Streaming."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from braided.api.connect import connect
    from braided.api.deadletters import deadLetters
    from braided.api.managed import managed
    from braided.api.operator import Operator, renamed
    from braided.api.params import Param
    from braided.api.query import ElasticQuery
    from braided.api.state import state, stateDiff
    from braided.api.stream import GroupedStream, Stream, stream
    from braided.api.writer import start
    from braided.errors import BraidedError

__all__ = [
    "BraidedError",
    "ElasticQuery",
    "GroupedStream",
    "Operator",
    "Param",
    "Stream",
    "connect",
    "deadLetters",
    "managed",
    "renamed",
    "start",
    "state",
    "stateDiff",
    "stream",
]

__version__ = "0.1.0"

_HOME = {
    "BraidedError": "braided.errors",
    "ElasticQuery": "braided.api.query",
    "GroupedStream": "braided.api.stream",
    "Operator": "braided.api.operator",
    "Param": "braided.api.params",
    "Stream": "braided.api.stream",
    "connect": "braided.api.connect",
    "managed": "braided.api.managed",
    "start": "braided.api.writer",
    "deadLetters": "braided.api.deadletters",
    "renamed": "braided.api.operator",
    "stateDiff": "braided.api.state",
    "stream": "braided.api.stream",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: a worker process needs a small part of this only.
    if name == "testing":
        return import_module("braided.testing")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'braided' has no attribute {name!r}")


class _StatePackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The committed state of a checkpoint as a DataFrame: `braided.api.state.state`."""
        return import_module("braided.api.state").state(*args, **kwargs)


# A package and a function have the name: the package can be called.
import_module("braided.state")
sys.modules["braided.state"].__class__ = _StatePackage
