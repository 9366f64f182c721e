"""What a task is told: of its batch by a property of the job, of its operator in its closure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from braided.orders.address import LineAddress
from braided.store.durable.store import Store
from braided.store.history.manifest import OperatorMeta
from braided.store.history.runs import RunFile
from braided.store.history.shipped_chains import ShippedChains
from braided.store.slots.channel_state import SnapshotLimits
from braided.tasks.key_pairs import PairSetting
from braided.tasks.packing import PackedProgram
from braided.tasks.shipped_moves import ShippedMoves
from braided.tasks.state_location import CacheSetting

__all__ = ["BATCH_PROPERTY", "BatchSpec", "ChannelSpec", "SplitKey", "TaskSpec"]

BATCH_PROPERTY = "braided.batch"
"""The local property of a job that has the `BatchSpec`."""


class SplitKey(msgspec.Struct, frozen=True, array_like=True):
    """A key whose rows are dealt out to several slots."""

    key: bytes
    slot: int
    """Where its state is."""
    channel: int
    """Which has that slot."""


class BatchSpec(msgspec.Struct, frozen=True):
    """What is particular to one try of one batch. Travels as a local property of the job."""

    token: str
    """Names the try, so that a late task of an earlier one is not listened to."""
    batch: int
    batch_time_ms: int
    watermark_ms: int
    late_watermark_ms: int
    """The watermark of the batch before, by which rows are late."""
    due: dict[str, dict[int, list[int]]]
    """Slots with a timer that is due, by operator and channel."""
    cut: int | None
    """Rows for each channel to process; the rest is carried."""
    holds_input: bool = False
    """Whether rows that are new to the query are left for the next batch, all of them."""
    moves: dict[str, ShippedMoves] = {}
    """Keys that change slots, by operator."""
    split: dict[str, list[SplitKey]] = {}
    """Keys that are split, by operator."""
    chains: dict[str, ShippedChains] = {}
    """What the slots of each channel are made of, by operator; none for one in its first batch."""
    initial: dict[str, tuple[RunFile, ...]] = {}
    """State that operators in their first batch start with."""
    failpoint: str = ""
    """Where a test wants a task to fail."""
    behind: dict[str, int] = {}
    """The late watermark of operators that are behind the others."""
    carried: dict[str, int] = {}
    """The watermark at which operators took in the oldest of the rows that they have carried."""
    output_watermark_ms: int = 0
    """How old the rows may be that the operator gives out, which this is for."""
    is_watched: bool = False
    """Whether tasks are to tell how far they are."""

    @property
    def known_watermark_ms(self) -> int | None:
        """The watermark; None while there is none, which Spark says as 0."""
        return self.watermark_ms if self.watermark_ms > 0 else None

    def of_try(self, token: str) -> BatchSpec:
        """The same batch, tried anew."""
        return msgspec.structs.replace(self, token=token)

    def of_operator(self, name: str, holds_watermark: bool) -> BatchSpec:
        """What an operator's tasks go by; for those that hold the watermark, it does not move."""
        late_ms = self.behind.get(name, self.late_watermark_ms)
        watermark_ms = late_ms if holds_watermark else self.watermark_ms
        return msgspec.structs.replace(
            self,
            watermark_ms=watermark_ms,
            late_watermark_ms=late_ms,
            output_watermark_ms=min(watermark_ms, self.carried.get(name, watermark_ms)),
        )

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> BatchSpec:
        return msgspec.json.decode(text, type=cls)


@dataclass(frozen=True)
class ChannelSpec:
    """What is the same for all tasks of an operator in all batches of a query."""

    program: Any
    meta: OperatorMeta
    flow: str
    store: Store
    cache: CacheSetting | None
    """None to do without."""
    limits: SnapshotLimits
    order: int
    """How many order columns the input has."""
    keep_order: bool
    """Whether they came along, and the output needs them."""
    line: LineAddress | None = None
    """How the driver reaches the tasks; None if it does not."""
    pairs: PairSetting | None = None
    """What is counted of the keys of rows that go on to other operators; None for nothing."""

    @property
    def first_column(self) -> int:
        """Where in a chunk the rows' own columns begin."""
        return self.order if self.keep_order else 0


@dataclass(frozen=True)
class TaskSpec(ChannelSpec):
    """The same for an operator whose code is a user's."""

    program: PackedProgram
    divert: bool = False
    """Whether a row whose operator raises goes to the dead letters."""
