"""One operator instance, lent to the keys of a task one after the other.

`open` loads a key's record into the instance, user code runs, `close` gives the record back. Both
are called for every key of every batch (100,000 and more), so they do as little as possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from braided.errors import OutputSchemaError
from braided.kinds.class_runtime import ClassRuntime
from braided.operator.definition import Operator, state_codec
from braided.operator.times import as_datetime

__all__ = ["OperatorRuntime"]

_NOTHING: tuple[int, ...] = ()


class OperatorRuntime(ClassRuntime):
    """Runs the hooks of one operator class for one task."""

    added: Iterable[int]
    """Timers (ms) that the key closed last has now and had not before."""

    removed: Iterable[int]
    """Timers (ms) that the key closed last had before and has no longer."""

    def __init__(
        self,
        operator: type[Operator],
        batch_time_ms: int,
        watermark_ms: int | None = None,
        history: tuple[str, ...] = (),
    ) -> None:
        """`history`: the versions that the state's fields had in the checkpoint."""
        super().__init__(operator)
        self.codec = state_codec(operator).at(history)
        self.op.batchTime = as_datetime(batch_time_ms)
        self.op.watermark = None if watermark_ms is None else as_datetime(watermark_ms)
        self.added = self.removed = _NOTHING
        self._load = self.codec.load
        self._dump = self.codec.dump
        self._fresh = self.codec.fresh
        self._evolved = self.codec.version > 1
        self._raw: bytes | None = None
        self._before: tuple[int, ...] = _NOTHING

    def open(self, key: Row, raw: bytes | None) -> None:
        """Lend the instance to a key with this record (None: a new key)."""
        op = self.op
        op.key = key
        self._raw = raw
        self._before = before = self._load(op, raw)
        op._timers = set(before) if before else None

    def close(self) -> bytes | None:
        """The key's record as it is now; None if the key has none.

        The very object given to `open` when nothing changed, also one of an earlier version. A key
        without a record gets none as long as it is as new: fields at their defaults and no timers.
        The same holds after `forget()`.
        """
        op = self.op
        timers = op._timers
        record = self._dump(op, tuple(sorted(timers)) if timers else _NOTHING)
        before = self._before
        if timers or before:
            now = timers or set()
            self.added = sorted(now.difference(before))
            self.removed = sorted(set(before).difference(now))
        else:
            self.added = self.removed = _NOTHING
        raw = self._raw
        if op._forgotten:
            op._forgotten = False
            raw = None
        if record == raw:
            return raw
        # Of all this only the first word costs anything before fields have changed.
        if (
            self._evolved
            and raw is not None
            and raw[0] != record[0]
            and self.codec.is_unchanged(raw, record)
        ):
            return raw
        return None if raw is None and record == self._fresh else record

    def save(self) -> tuple[bytes | None, bool]:
        """The open key as it is now, for `restore`; raises StateValueError as `close` does."""
        op = self.op
        timers = op._timers
        return self._dump(op, tuple(sorted(timers)) if timers else _NOTHING), op._forgotten

    def saved_at_open(self) -> tuple[bytes | None, bool]:
        """What `save` would have said of the key when it was opened."""
        return self._raw, False

    def restore(self, saved: tuple[bytes | None, bool]) -> None:
        """Makes the open key what it was, fields and timers."""
        op = self.op
        raw, op._forgotten = saved
        timers = self._load(op, raw)
        op._timers = set(timers) if timers else None

    def fire(self, ms: int) -> Any:
        """Call `onTimer` for a timer of the open key, which is then no longer pending.

        Nothing is called if it is not pending: another timer of the key that was due in the same
        batch may have taken it back, or dropped the key.
        """
        op = self.op
        if not op._timers or ms not in op._timers:
            return None
        op._timers.discard(ms)
        return op.onTimer(as_datetime(ms))

    def rows_of(self, result: Any, hook: str) -> Iterable[Any]:
        """What a hook returned, as an iterable of output rows (and tables)."""
        if result is None:
            return _NOTHING
        if isinstance(result, pa.Table | pa.RecordBatch):
            return (result,)
        if isinstance(result, dict | Row | str | bytes) or not isinstance(result, Iterable):
            raise OutputSchemaError(
                f"{type(self.op).__name__}.{hook} returned {type(result).__name__} "
                f"{result!r:.80}; yield each output row, or return a list of rows"
            )
        return result

    def code(self) -> Any:
        # Behind a class that was made for a function over dicts stands the function.
        bound = getattr(type(self.op), "_bound", None)
        return type(self.op) if bound is None else bound.function

    def advice(self, error: BaseException) -> str | None:
        """A sentence on an error whose own message does not say what to do, or None."""
        name = type(self.op).__name__
        if not isinstance(error, AttributeError):
            return None
        missing = re.search(rf"'{re.escape(name)}' object has no attribute '(\w+)'", str(error))
        if missing:
            field = missing[1]
            return (
                f"state is kept in annotated fields: declare `{field}: <type> = <default>` "
                f"in class {name}"
            )
        fixed = re.search(rf"'{re.escape(name)}' object attribute '(\w+)' is read-only", str(error))
        if fixed:
            return (
                f"{fixed[1]} belongs to the class and is the same for every key: what changes is "
                "kept in a field, annotated with its type alone"
            )
        return None
