"""What a channel tells the driver at the end of its task.

Reports travel in one accumulator per query. An accumulator's update holds up Spark's scheduler
until the driver's Python has answered, so a report is small: names, digests and a few numbers per
slot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from pyspark import AccumulatorParam, SparkContext
from pyspark.accumulators import Accumulator

from braided.errors import ChannelMissingError, NondeterministicBatchError
from braided.spark.query_handle import forget_accumulator
from braided.store.history.manifest import CarryFile, DeadFile
from braided.store.history.runs import RunFile
from braided.tasks.key_pairs import PairReport

__all__ = ["ChannelReport", "KeyRecord", "KeyRows", "ReportBox", "SlotReport", "partials_of"]


class SlotReport(msgspec.Struct, frozen=True, array_like=True):
    """One slot as a channel left it: what it holds, and by how much that is more than before."""

    slot: int
    rows: int
    busy_ns: int
    keys: int
    bytes: int
    keys_added: int
    bytes_added: int
    due_ms: int | None


class KeyRows(msgspec.Struct, frozen=True, array_like=True):
    """A key that had many of its channel's rows; `place` is slot and bits of its hash."""

    key: bytes
    place: int
    rows: int


class KeyRecord(msgspec.Struct, frozen=True, array_like=True):
    """The record that a key has in a slot, or would have."""

    key: bytes
    slot: int
    record: bytes | None


def partials_of(records: Mapping[tuple[bytes, int], bytes | None]) -> tuple[KeyRecord, ...]:
    """What the rows of split keys came to in each share, by key and slot, where they changed
    anything.
    """
    return tuple(
        KeyRecord(key, slot, record)
        for (key, slot), record in sorted(records.items())
        if record is not None
    )


class ChannelReport(msgspec.Struct, frozen=True):
    """One successful attempt of one channel of one operator in one batch."""

    operator: str
    channel: int
    attempt: str
    log: RunFile | None
    snap: RunFile | None
    carry: CarryFile | None
    slots: tuple[SlotReport, ...]
    keys_added: int
    """In all of them; so the driver need not go through them to commit."""
    bytes_added: int
    has_timers: bool
    """Whether one of them has a timer."""
    rows_in: int
    rows_out: int
    keys_touched: int
    busy_ns: int
    output_digest: str
    slots_opened: int
    cache_hits: int
    rolled_back: int
    caught_up: int
    rebuilt: int
    bytes_caught_up: int
    cache_errors: int
    dead: DeadFile | None = None
    heavy: tuple[KeyRows, ...] = ()
    traits: str = ""
    """Stands for the log where chance has a part in what is in it."""
    bytes_in: int = 0
    waited_ns: int = 0
    """Until slots were open that were not in the cache as they had to be."""
    executor: str = ""
    """The id of Spark's executor that ran it, where channels have hosts."""
    holds_watermark: bool = False
    """Whether the watermark stayed, for it, where it was in the batch before."""
    cpu_ns: int | None = None
    """The part of its work in which the task needs a core, whether or not it got one at once."""
    rows_updated: int = 0
    """Rows of state that it wrote; those of timers are none."""
    rows_removed: int = 0
    rows_late: int = 0
    """Rows that it dropped because the watermark had passed them."""
    commit_ns: int = 0
    """Until what changed was written."""
    wholes: tuple[KeyRecord, ...] = ()
    """Split keys whose state is in a slot of this channel, as they were before the batch."""
    partials: tuple[KeyRecord, ...] = ()
    """What the rows of split keys came to here, by the slot of their share."""

    pairs: tuple[PairReport, ...] = ()
    """With which keys of the next operators its rows went on."""

    def result(self) -> tuple[str, ...]:
        """Equal for two attempts that did the same."""
        return (
            self.traits or (self.log.digest if self.log else ""),
            self.carry.digest if self.carry else "",
            self.dead.digest if self.dead else "",
            self.output_digest,
            _digest(self.partials) if self.partials else "",
        )


def _digest(records: tuple[KeyRecord, ...]) -> str:
    return hashlib.blake2b(msgspec.msgpack.encode(records), digest_size=16).hexdigest()


class _Concatenate(AccumulatorParam[list[bytes]]):
    def zero(self, value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, left: list[bytes], right: list[bytes]) -> list[bytes]:
        left.extend(right)
        return left


class ReportBox:
    """The driver's letter box. A task drops `encode(report)` with the token of its try."""

    def __init__(self, context: SparkContext) -> None:
        self.accumulator: Accumulator[list[bytes]] = context.accumulator([], _Concatenate())

    def close(self) -> None:
        """Nothing is taken from here any more; letters that still come are thrown away."""
        forget_accumulator(self.accumulator)

    @staticmethod
    def encode(token: str, report: ChannelReport) -> bytes:
        return msgspec.msgpack.encode((token, report))

    def take(self, token: str, channels: dict[str, int]) -> dict[str, list[ChannelReport]]:
        """The reports of one try, per operator in channel order, exactly one per channel."""
        letters = self.accumulator.value
        self.accumulator.value = []
        reports: dict[tuple[str, int], ChannelReport] = {}
        for letter in letters:
            sender, report = msgspec.msgpack.decode(letter, type=tuple[str, ChannelReport])
            if sender != token:  # a task of an earlier try that ended late
                continue
            count = channels[report.operator]
            if report.channel >= count:
                raise ChannelMissingError(
                    f"operator {report.operator!r} has {count} channels, but Spark ran one as "
                    f"partition {report.channel}: a step after it, such as a crossJoin without "
                    "broadcast, changes its partitions; the batch is not committed"
                )
            twin = reports.setdefault((report.operator, report.channel), report)
            if twin.result() != report.result():
                raise NondeterministicBatchError(
                    f"two attempts of channel {report.channel} of operator {report.operator!r} "
                    "gave different results; the batch is not committed"
                )
        missing = [
            f"{operator}[{channel}]"
            for operator, count in channels.items()
            for channel in range(count)
            if (operator, channel) not in reports
        ]
        if missing:
            raise ChannelMissingError(
                f"Spark finished the job without a report from {', '.join(missing)}; the batch "
                "is not committed"
            )
        return {
            operator: [reports[operator, channel] for channel in range(count)]
            for operator, count in channels.items()
        }
