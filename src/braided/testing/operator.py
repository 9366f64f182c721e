"""`OperatorHarness`: an operator on given rows, without Spark.

    harness = OperatorHarness(Threshold, key="id")
    assert harness.process([{"id": "a", "value": 12.0}]) == [Row(id="a", value=12.0)]
    assert harness.state("a") == {"stored": 12.0}

What runs is the engine's own task (`kinds/operator/run.py`, `kinds/columnar/run.py`), on a
checkpoint in a temporary directory: state is encoded, written, committed and read back between
calls, so a value that can't be stored fails here as it would live. What there is not is Spark: no
sources, no late rows dropped, no sinks.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import Row
from pyspark.sql.types import StructType

from braided.control.routing.table import RoutingTable
from braided.errors import DefinitionError
from braided.operator.columns import ColumnOperator
from braided.operator.definition import Operator
from braided.operator.times import as_datetime, as_ms
from braided.query.checkpoint import fit
from braided.query.commit import manifest_of
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import OperatorMeta, View
from braided.store.history.manifest_log import ManifestLog
from braided.store.history.shipped_chains import shipped_chains
from braided.store.slots.channel_state import ChannelState, SnapshotLimits
from braided.store.slots.layout import record_suffix, unwrap
from braided.tasks.outcome import Outcome
from braided.tasks.output import OutputEncoder
from braided.tasks.spec import BatchSpec, TaskSpec
from braided.testing.ddl import parse_schema
from braided.testing.kinds import tested_kind
from braided.testing.rows import ANYTHING, ORDER, AnyProgram, chunk_of, inferred, slot_of

__all__ = ["OperatorHarness"]

SLOTS = 4
_FULL_EVERY = 16
_START = datetime(2024, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)


class OperatorHarness:
    """One operator with state of its own. Every call is a batch that is committed."""

    def __init__(
        self,
        operator: type[Operator] | type[ColumnOperator],
        *,
        key: str | Sequence[str],
        schema: StructType | str | None = None,
        input: StructType | str | None = None,
        timeMode: str = "ProcessingTime",
        now: datetime = _START,
        onError: str = "fail",
    ) -> None:
        """`key` names the grouping columns. `schema` is that of the output, as for `apply`; without
        it output is not checked. `input` is that of the rows; without it, it is taken from them.
        """
        self._name = operator.__name__
        self._keys = [key] if isinstance(key, str) else list(key)
        self._output = None if schema is None else parse_schema(schema)
        self._input = None if input is None else parse_schema(input)
        self._inferred = input is None
        if timeMode not in ("ProcessingTime", "EventTime"):
            raise DefinitionError(
                f"timeMode is {timeMode!r}; it takes 'ProcessingTime' or 'EventTime'"
            )
        self._time_mode = timeMode
        if onError not in ("fail", "divert"):
            raise DefinitionError(f"onError is {onError!r}; it takes 'fail' or 'divert'")
        self._divert = onError == "divert"
        self._now_ms = as_ms(now)
        self._watermark_ms = 0
        root = tempfile.mkdtemp(prefix="braided-test-")
        weakref.finalize(self, shutil.rmtree, root, ignore_errors=True)
        self._files = LocalStore(root)
        self._manifests = ManifestLog(self._files)
        self._flow = uuid.uuid4().hex
        self._view = View.empty()
        self._program: AnyProgram | None = None
        self._use(operator)

    # -- what happens ----------------------------------------------------------------------

    def process(self, rows: Iterable[Any]) -> list[Row]:
        """A batch of rows (dicts, Rows; tuples if `input` was given): what the operator gives out.

        Output is in the order of the rows that caused it; that of timers comes after. An error is
        raised as the query would have it, and leaves everything as it was before the call.
        """
        given = list(rows)
        if self._inferred and given:
            self._input = inferred(self._input, given)
            missing = [name for name in self._keys if name not in self._input.names]
            if missing:
                raise DefinitionError(f"the rows have no column {missing[0]!r} to be the key")
            self._program = None
        return self._batch(given)

    def advanceTime(self, to: datetime | timedelta) -> list[Row]:
        """A batch without rows at this time, or so much later: what due timers give out."""
        self._now_ms = _moved(self._now_ms, to, "time")
        return self._batch([])

    def advanceWatermark(self, to: datetime | timedelta) -> list[Row]:
        """A batch without rows with the watermark there: what due timers give out."""
        self._watermark_ms = _moved(self._watermark_ms, to, "watermark")
        return self._batch([])

    def restart(self, operator: type[Operator] | type[ColumnOperator] | None = None) -> None:
        """Goes on with another class in the place of the operator, as after a new deployment.

        Raises CheckpointMismatchError if its fields don't fit the state.
        """
        self._use(self._operator if operator is None else operator)

    # -- what is there ---------------------------------------------------------------------

    def state(self, *key: Any) -> dict[str, Any] | None:
        """The fields of a key as they are stored; None if nothing is stored of it."""
        record = self._record(key)
        return None if record is None else self._loaded(record)[0]

    def timers(self, *key: Any) -> list[datetime]:
        """The pending timers of a key, earliest first."""
        record = self._record(key)
        return [] if record is None else [as_datetime(ms) for ms in self._loaded(record)[1]]

    def keys(self) -> list[Row]:
        """The keys that have something stored, in no particular order."""
        if self._name not in self._view.operators:
            return []
        state, program = self._state(), self._ready()
        stored = [key for slot in range(SLOTS) for key, _ in state.slot(slot).records()]
        return list(program.key_rows.rows_of(program.keys.decode_batch(stored)))

    def deadLetters(self) -> list[Row]:
        """What was diverted, with `onError="divert"`: error, operator, key, row and batch."""
        found: list[Row] = []
        for file in self._view.dead:
            table = pq.read_table(self._files.get(file.name))
            found += [Row(**row) for row in table.to_pylist()]
        return found

    # -- how -------------------------------------------------------------------------------

    def _use(self, operator: type[Operator] | type[ColumnOperator]) -> None:
        kind = tested_kind(operator)
        if self._divert and not kind.diverts:
            raise DefinitionError("onError='divert': a ColumnOperator gets many rows as a whole")
        meta = OperatorMeta(
            ordinal=0,
            slots=SLOTS,
            key=",".join(self._keys),
            state=kind.describe(),
            codec=kind.codec,
            time_mode=self._time_mode,
        )
        continued = partial(kind.continued, self._name)
        fitted = fit(self._view, {self._name: meta}, {self._name: continued}, None)
        self._meta = fitted[self._name]
        self._operator, self._kind = operator, kind
        self._program = None

    def _ready(self) -> AnyProgram:
        """The operator with the schemas known by now."""
        if self._program is None:
            rows = self._input or StructType([])
            self._program = self._kind.program(
                name=self._name,
                operator=self._operator,
                time_mode=self._time_mode,
                input=rows,
                key=StructType([rows[name] for name in self._keys]),
                key_positions=tuple(rows.names.index(name) for name in self._keys),
                output=self._output or ANYTHING,
            )
            self._packed = self._program.pack()  # as a query does: it must be able to travel
        return self._program

    def _batch(self, rows: list[Any]) -> list[Row]:
        if self._input is None:
            return []  # not a row has come, so no key has a timer
        program = self._ready()
        number = self._view.batch + 1
        now_ms = self._watermark_ms if self._time_mode == "EventTime" else self._now_ms
        known = self._view.operators.get(self._name)
        due = [slot for slot, ms in known.due.items() if ms <= now_ms] if known else []
        batch = BatchSpec(
            token="",
            batch=number,
            batch_time_ms=self._now_ms,
            watermark_ms=self._watermark_ms,
            late_watermark_ms=self._watermark_ms,
            due={self._name: {0: due}},
            cut=None,
            chains=shipped_chains({self._name: known} if known else {}),
        )
        spec = TaskSpec(
            program=self._packed,
            meta=self._meta,
            flow=self._flow,
            store=self._files,
            cache=None,
            limits=SnapshotLimits(),
            order=ORDER,
            keep_order=True,
            divert=self._divert,
        )
        run = self._kind.begin(spec, program, batch)
        try:
            chunks = list(run.process(iter([chunk_of(program, rows, SLOTS)] if rows else [])))
        except BaseException:
            run.abandon()
            self._program = None  # what it had kept of the output is void
            raise
        outcome = Outcome(
            batch=number,
            batch_time_ms=self._now_ms,
            watermark_ms=self._watermark_ms,
            metas={self._name: self._meta},
            tables={self._name: RoutingTable.initial(SLOTS, 1)},
            reports={self._name: [run.finish()]},
            outputs=(),
            fed_back=[],
            initial={},
        )
        full = number % _FULL_EVERY == 0
        self._manifests.write(manifest_of(outcome, self._view, self._flow, "test", full))
        self._view = self._manifests.view_at(number, self._flow)
        return program.given(chunks)

    def _state(self) -> ChannelState:
        view = self._view.operators[self._name]
        return ChannelState(self._files, None, self._name, view, SnapshotLimits())

    def _record(self, key: tuple[Any, ...]) -> bytes | None:
        if len(key) != len(self._keys):
            raise DefinitionError(f"a key is {', '.join(self._keys)}, not {key!r}")
        if self._name not in self._view.operators:
            return None
        program = self._ready()
        columns = OutputEncoder(program.key, self._name).encode([key]).columns
        [encoded] = program.keys.encode_batch(columns)
        suffix, _ = record_suffix(encoded)
        stored = self._state().slot(slot_of(encoded, SLOTS)).get(suffix)
        return None if stored is None else unwrap(suffix, stored)[1]

    def _loaded(self, record: bytes) -> tuple[dict[str, Any], list[int]]:
        return self._kind.fields(record, self._meta.history)


def _moved(at_ms: int, to: datetime | timedelta, what: str) -> int:
    ms = at_ms + to // _MILLISECOND if isinstance(to, timedelta) else as_ms(to)
    if ms < at_ms:
        raise DefinitionError(f"the {what} is at {as_datetime(at_ms)} and can't go back to {to}")
    return ms
