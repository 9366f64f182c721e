"""A StatefulProcessor on one channel, batch by batch on plain Arrow chunks, without Spark's JVM."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from braided.control.routing.table import RoutingTable
from braided.kinds.processor.handle import DriverHandle
from braided.kinds.processor.output import PandasSettings
from braided.kinds.processor.program import ProcessorProgram
from braided.kinds.processor.run import ProcessorRun
from braided.kinds.processor.step import continued_variables
from braided.query.checkpoint import fit
from braided.query.commit import manifest_of
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import OperatorMeta
from braided.store.history.manifest_log import ManifestLog
from braided.store.history.shipped_chains import shipped_chains
from braided.store.slots.channel_state import ChannelState, SnapshotLimits
from braided.store.slots.key_codec import KeyCodec
from braided.tasks.channel import Channel
from braided.tasks.columns import PLACE_SHIFT
from braided.tasks.outcome import Outcome
from braided.tasks.packing import PackedProgram
from braided.tasks.reports import ChannelReport
from braided.tasks.spec import BatchSpec, TaskSpec
from braided.tasks.state_location import CacheSetting
from braided.testing.ddl import parse_schema
from support.channel_runs import finished
from support.moved_keys import moved

__all__ = ["SETTINGS", "ProcessorFlow"]

NAME = "P"
SLOTS = 4
SETTINGS = PandasSettings("UTC", False, True, False, False, 10_000, 1 << 26)


class _Handle(DriverHandle):
    """Knows schemas in words without asking Spark."""

    def _schema(self, schema: StructType | str) -> StructType:
        if not isinstance(schema, str):
            return schema
        self.schemas[schema] = parse_schema(schema)
        return self.schemas[schema]


class ProcessorFlow:
    """Rows (key, value) in, what the processor gives out, batch by batch."""

    def __init__(
        self,
        home: Path,
        processor: StatefulProcessor,
        output: str,
        time_mode: str = "ProcessingTime",
        pandas: bool = False,
        rows: str = "k string, v long",
        cached: bool = True,
        settings: PandasSettings = SETTINGS,
    ) -> None:
        self.home, self.pandas, self.time_mode = home, pandas, time_mode
        self.input, self.output = parse_schema(rows), parse_schema(output)
        self.cached = cached
        self.settings = settings
        self.manifests = ManifestLog(LocalStore(str(home / "braided")))
        self.batch = -1
        self.watermark_ms = 0
        self.report: ChannelReport | None = None
        """Of the last batch."""
        self._pinned: dict[Any, int] = {}
        self._moves: list[tuple[bytes, int, int]] = []
        self.restart(processor)

    def restart(self, processor: StatefulProcessor) -> None:
        """Goes on from what is committed, with a processor that may be another."""
        handle = _Handle(self.time_mode)
        processor.init(handle)
        data = cloudpickle.dumps(processor)
        self.program = ProcessorProgram(
            name=NAME,
            processor=data,
            time_mode=self.time_mode,
            pandas=self.pandas,
            input=self.input,
            key=StructType(self.input.fields[:1]),
            key_positions=(0,),
            output=self.output,
            schemas=handle.schemas,
            expires=any(variable.expires for variable in handle.declared.variables),
            settings=self.settings,
        )
        meta = OperatorMeta(
            ordinal=0,
            slots=SLOTS,
            key="",
            state=handle.declared.numbered().describe(),
            codec="variables-1",
            time_mode=self.time_mode,
        )
        continued = partial(continued_variables, NAME, handle.declared)
        fitted = fit(self.view, {NAME: meta}, {NAME: continued}, None)
        self.meta = fitted[NAME]

    @property
    def view(self) -> Any:
        return self.manifests.view_at(self.batch, "flow")

    def run(
        self,
        rows: list[tuple[Any, ...]],
        now_ms: int = 0,
        watermark_ms: int = 0,
        chunk: int = 3,
        commit: bool = True,
    ) -> list[dict[str, Any]]:
        known = self.view.operators.get(NAME)
        clock = watermark_ms if self.time_mode == "EventTime" else now_ms
        due = [s for s, ms in known.due.items() if ms <= clock] if known else []
        batch = BatchSpec(
            token="t",
            batch=self.batch + 1,
            batch_time_ms=now_ms,
            watermark_ms=watermark_ms,
            late_watermark_ms=self.watermark_ms,
            due={NAME: {0: due}},
            cut=None,
            moves={NAME: moved(self._moves)} if self._moves else {},
            chains=shipped_chains(self.view.operators),
        )
        spec = TaskSpec(
            program=PackedProgram(b"", ""),
            meta=self.meta,
            flow="flow",
            store=LocalStore(self.home / "braided"),
            cache=CacheSetting(str(self.home)) if self.cached else None,
            limits=SnapshotLimits(),
            order=2,
            keep_order=False,
        )
        task = ProcessorRun(Channel.open(spec, NAME, batch, 0), self.program)
        rows = sorted(rows, key=lambda row: (self._slot(row[0]), str(row[0])))
        parts = [self._chunk(rows[i : i + chunk]) for i in range(0, len(rows), chunk)]
        chunks, self.report = finished(task, parts)
        given = [row for out in chunks for row in out.to_pylist()]
        if commit:
            outcome = Outcome(
                batch=self.batch + 1,
                batch_time_ms=now_ms,
                watermark_ms=watermark_ms,
                metas={NAME: self.meta},
                tables={NAME: RoutingTable.initial(SLOTS, 1)},
                reports={NAME: [self.report]},
                outputs=(),
                fed_back=[],
                initial={},
            )
            self.manifests.write(manifest_of(outcome, self.view, "flow", "test", False))
            self.batch += 1
            self._moves = []
            self.watermark_ms = watermark_ms
        return given

    def pin(self, key: str, slot: int) -> None:
        """From the next batch on a key is in another slot."""
        data = KeyCodec(pa.schema([("k", pa.string())])).encode_batch([pa.array([key])])
        self._moves.append((data[0], self._slot(key), slot))
        self._pinned[key] = slot

    def stored(self) -> dict[bytes, bytes]:
        """Everything that lies in the slots, from durable files."""
        state = ChannelState(
            LocalStore(str(self.home / "braided")),
            None,
            NAME,
            self.view.operators[NAME],
            SnapshotLimits(),
        )
        return {
            place: value for slot in range(SLOTS) for place, value in state.slot(slot).scan(b"")
        }

    def _chunk(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        from braided.spark.arrow_types import to_arrow_schema

        schema = to_arrow_schema(self.input)
        columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
        places = np.array([self._slot(row[0]) << PLACE_SHIFT for row in rows], np.int64)
        names = [*schema.names, "place"]
        return pa.RecordBatch.from_arrays([*columns, pa.array(places)], names=names)

    def _slot(self, key: Any) -> int:
        return self._pinned.get(key, sum(str(key).encode()) % SLOTS)
