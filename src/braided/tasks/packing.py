"""A program with a user's code on its way to the workers: packed once, unpacked once a process.

Spark ships a broadcast variable with a function when it meets it while it pickles the function.
Ours are inside bytes that were pickled before, so they travel a second time beside the bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any

from pyspark import Broadcast, SparkContext, cloudpickle
from pyspark.sql.types import StructType

__all__ = ["PackedProgram", "pack", "pickled"]

_KEPT = 64
"""Programs that a worker keeps unpacked: a session has few queries at a time, and each a few."""
_unpacked: OrderedDict[str, Any] = OrderedDict()


@dataclass(frozen=True)
class PackedProgram:
    """What travels: bytes, their digest, and the broadcast variables that they refer to."""

    data: bytes
    digest: str
    broadcasts: tuple[Broadcast[Any], ...] = ()

    def unpack(self) -> Any:
        """The program that was packed, made once per process."""
        program = _unpacked.get(self.digest)
        if program is None:
            make, values = cloudpickle.loads(self.data)
            program = make(**{name: _unwrapped(value) for name, value in values.items()})
            _unpacked[self.digest] = program
            if len(_unpacked) > _KEPT:
                _unpacked.popitem(last=False)
        return program


def pack(program: Any, broadcasts: tuple[Broadcast[Any], ...] = ()) -> PackedProgram:
    """A dataclass of a program; `broadcasts` are those that bytes in it refer to."""
    values = {field.name: _wrapped(getattr(program, field.name)) for field in fields(program)}
    data, met = pickled((type(program), values))
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return PackedProgram(data, digest, (*broadcasts, *met))


@dataclass(frozen=True)
class _Schema:
    """A schema as text, because a pickled one takes along what PySpark has cached in it."""

    text: str


def _wrapped(value: Any) -> Any:
    if isinstance(value, StructType):
        return _Schema(value.json())
    if isinstance(value, tuple) and value and all(isinstance(v, StructType) for v in value):
        return tuple(map(_wrapped, value))
    return value


def _unwrapped(value: Any) -> Any:
    if isinstance(value, _Schema):
        return StructType.fromJson(json.loads(value.text))
    if isinstance(value, tuple) and value and isinstance(value[0], _Schema):
        return tuple(map(_unwrapped, value))
    return value


def pickled(value: Any) -> tuple[bytes, tuple[Broadcast[Any], ...]]:
    """The bytes of a value and the broadcast variables that were met on the way."""
    context = SparkContext._active_spark_context
    if context is None:
        return cloudpickle.dumps(value), ()  # type: ignore[no-untyped-call]
    met: Any = context._pickled_broadcast_vars
    before = tuple(met)
    met.clear()
    try:
        data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
        return data, tuple(met)
    finally:
        met.clear()
        for broadcast in before:
            met.add(broadcast)
