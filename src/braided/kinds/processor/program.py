"""A StatefulProcessor as a task needs it: what does not change from batch to batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from braided.kinds.processor.handle import Schemas
from braided.kinds.processor.output import FrameEncoder, PandasSettings, RowEncoder
from braided.spark.arrow_types import to_arrow_schema
from braided.store.slots.key_codec import KeyCodec

__all__ = ["ProcessorProgram"]


@dataclass(frozen=True)
class ProcessorProgram:
    """One processor of a flow, ready to run."""

    name: str
    processor: bytes
    """Pickled: every task has one of its own, as in Spark."""
    time_mode: str
    pandas: bool
    """Whether it takes and gives data frames, else Rows."""
    input: StructType
    key: StructType
    key_positions: tuple[int, ...]
    """Where the key columns are among the rows' own and the hidden ones."""
    output: StructType
    schemas: Schemas
    expires: bool
    """Whether some of its state has a time to live."""
    settings: PandasSettings
    exact_frames: bool = False
    """Whether frames have numbers of the columns' own sizes, as with applyInPandasWithState."""
    event_time: int | None = None
    """The output column that must not be behind the watermark."""

    def make(self) -> StatefulProcessor:
        """A processor for one task."""
        processor: StatefulProcessor = cloudpickle.loads(self.processor)
        return processor

    @cached_property
    def rows(self) -> RowEncoder:
        return RowEncoder(self.output, self.name)

    @cached_property
    def frames(self) -> FrameEncoder:
        return FrameEncoder(self.output, self.name, self.settings)

    @cached_property
    def key_schema(self) -> pa.Schema:
        return to_arrow_schema(self.key)

    @cached_property
    def keys(self) -> KeyCodec:
        return KeyCodec(self.key_schema)
