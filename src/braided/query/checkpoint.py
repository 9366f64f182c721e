"""The checkpoint at start: is it ours, is it whole, does the flow fit it?"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from braided.errors import CheckpointCorruptError, CheckpointMismatchError
from braided.store.durable.files import UNREADABLE, Files
from braided.store.history.manifest import OperatorMeta, View
from braided.store.history.manifest_log import Manifests
from braided.store.records.codec import StateCodec
from braided.store.records.old_records import evolve
from braided.store.variables.declared import Declared, evolved

__all__ = ["BatchTimes", "SparkLog", "Started", "fit", "open_view"]


class _OffsetMetadata(msgspec.Struct):
    batchWatermarkMs: int = 0
    batchTimestampMs: int = 0


@dataclass(frozen=True)
class BatchTimes:
    """When a batch is, the same in every replay of it."""

    batch_time_ms: int
    watermark_ms: int


class SparkLog:
    """Spark's own record of a query: offsets before a batch, commits after it."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint

    def last_commit(self) -> int | None:
        return self._newest("commits")

    def last_offset(self) -> int | None:
        return self._newest("offsets")

    def times(self, batch: int) -> BatchTimes:
        path = self._checkpoint / "offsets" / str(batch)
        try:
            line = path.read_text().split("\n")[1]
            found = msgspec.json.decode(line, type=_OffsetMetadata)
        except (OSError, IndexError, *UNREADABLE) as error:
            raise CheckpointCorruptError(
                f"Spark's offsets of batch {batch} ({path}): {error}"
            ) from None
        return BatchTimes(found.batchTimestampMs, found.batchWatermarkMs)

    def rows(self, batch: int) -> int | None:
        """The rows that a batch took in, where all sources have offsets that count them."""
        before, after = (self._positions(number) for number in (batch - 1, batch))
        if not before or not after or len(before) != len(after):
            return None
        counts = [(_counted(old), _counted(new)) for old, new in zip(before, after, strict=True)]
        if any(old is None or new is None for old, new in counts):
            return None
        return sum(max(0, new - old) for old, new in counts if old is not None and new is not None)

    def tick(self, batch: int) -> int:
        """Where our own source, the last of all, was when a batch began; -1 before its first."""
        path = self._checkpoint / "offsets" / str(batch)
        try:
            last = path.read_text().strip("\n").split("\n")[-1]
            return -1 if last == "-" else int(last)
        except (OSError, ValueError) as error:
            raise CheckpointMismatchError(
                "another query has begun here, or an older version of Braided: the sources in "
                f"{path} do not end with the one that Braided adds ({error}). Use a new "
                "checkpointLocation"
            ) from None

    def had_input(self, batch: int) -> bool:
        """Whether a batch took anything in; True where that can't be told any more."""
        before, after = (self._positions(number) for number in (batch - 1, batch))
        return before is None or before != after

    def _positions(self, batch: int) -> list[str] | None:
        """Where the sources are, but for the tick, which is the last of them."""
        try:
            text = (self._checkpoint / "offsets" / str(batch)).read_text()
        except OSError:
            return None
        return text.strip("\n").split("\n")[2:-1]

    def _newest(self, directory: str) -> int | None:
        where = self._checkpoint / directory
        if not where.is_dir():
            return None
        return max((int(p.name) for p in where.iterdir() if p.name.isdigit()), default=None)


def _counted(position: str) -> int | None:
    """The sum of offsets by topic and partition, as Kafka has them; None for any others."""
    try:
        topics = msgspec.json.decode(position, type=dict[str, dict[str, int]])
    except msgspec.MsgspecError:
        return None
    return sum(offset for partitions in topics.values() for offset in partitions.values())


@dataclass(frozen=True)
class Started:
    """Where a query continues."""

    view: View
    flow: str
    fresh: bool


def open_view(manifests: Manifests, log: SparkLog, location: str) -> Started:
    """The newest view, if Spark's log agrees with it."""
    newest, committed = manifests.newest(), log.last_commit()
    if newest is None:
        if committed is None:
            return Started(View.empty(), uuid.uuid4().hex, True)
        raise CheckpointMismatchError(
            f"the checkpoint {location} holds {committed + 1} committed batches of Spark's and no "
            "manifest of Braided's: either another query wrote it, or its braided/manifests "
            "directory was deleted and the state with it. Use a new checkpointLocation, or restore "
            "the directory"
        )
    if committed is None:
        committed = -1
    if newest not in (committed, committed + 1):
        raise CheckpointMismatchError(
            f"the checkpoint {location} does not fit together: Spark has committed batch "
            f"{committed}, Braided's newest manifest is of batch {newest}; it must be the "
            "same batch or "
            "the one after. Files were deleted or restored from different times"
        )
    planned = log.last_offset()
    if planned is None or planned < newest:
        raise CheckpointMismatchError(
            f"the checkpoint {location} does not fit together: Braided's newest manifest is of "
            f"batch {newest}, of which Spark's offsets know nothing. Its offsets directory was "
            "deleted or restored from another time: restore it, or use a new checkpointLocation"
        )
    view = manifests.view_at(newest)
    return Started(view, view.flow, False)


def fit(
    view: View,
    metas: Mapping[str, OperatorMeta],
    codecs: Mapping[str, StateCodec],
    slots_given: int | None,
    declared: Mapping[str, Declared] | None = None,
) -> dict[str, OperatorMeta]:
    """The operators as the checkpoint is to know them; refuses a flow that does not continue it."""
    gone = [name for name in view.operators if name not in metas]
    if gone:
        raise CheckpointMismatchError(
            f"the checkpoint holds state of operator {gone[0]!r}, which is not in the flow "
            f"(it has {', '.join(map(repr, metas))}). Bring it back, give the operator "
            "that continues it that "
            'name with .name("..."), or use a new checkpointLocation'
        )
    fitted = {}
    ordinal = max((o.meta.ordinal for o in view.operators.values()), default=-1) + 1
    for name, meta in metas.items():
        known = view.operators.get(name)
        if known is None:
            fitted[name] = msgspec.structs.replace(meta, ordinal=ordinal)
            ordinal += 1
            continue
        kept = known.meta
        if slots_given is not None and slots_given != kept.slots:
            raise CheckpointMismatchError(
                f"operator {name!r} has {kept.slots} slots in this checkpoint and "
                "braided.slots asks for "
                f"{slots_given}: the number is fixed at the first start. Leave the option out, or "
                "use a new checkpointLocation"
            )
        if kept.time_mode != meta.time_mode:
            raise CheckpointMismatchError(
                f"operator {name!r} has timeMode={kept.time_mode!r} in this checkpoint and is now "
                f"given {meta.time_mode!r}: its timers were set by the one clock and would "
                "all fire at once, or never, by the other. Change it back, or use a new "
                "checkpointLocation"
            )
        for what, old, new in (
            ("key columns", kept.key, meta.key),
            ("state encoding", kept.codec, meta.codec),
        ):
            if old != new:
                raise CheckpointMismatchError(
                    f"operator {name!r} does not fit the state in this checkpoint: its {what} were "
                    f"{old} and are now {new}. Change them back, give the operator "
                    "another name, or "
                    "use a new checkpointLocation"
                )
        if declared and name in declared:
            *earlier, state = evolved(name, declared[name], kept.history)
            fitted[name] = msgspec.structs.replace(kept, state=state, earlier=tuple(earlier))
            continue
        if name not in codecs:
            if kept.state != meta.state:
                raise CheckpointMismatchError(
                    f"the aggregates of {name!r} do not fit the state in this checkpoint: they "
                    f"were {kept.state} and are now {meta.state}. Change them back, give them "
                    "another name, or use a new checkpointLocation"
                )
            fitted[name] = kept
            continue
        *earlier, state = evolve(codecs[name], name, kept.history)
        fitted[name] = msgspec.structs.replace(kept, state=state, earlier=tuple(earlier))
    return fitted


def braided_files(checkpoint: Path) -> Files:
    return Files(str(checkpoint / "braided"))
