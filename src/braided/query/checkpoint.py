"""The checkpoint at start: is it ours, is it whole, does the flow fit it?"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from braided.errors import CheckpointMismatchError, OptionError, start_anew
from braided.spark.offset_log import SparkLog
from braided.spark.source_log import SourceLog
from braided.store.durable.store import Store
from braided.store.history.manifest import ORDINALS, OperatorMeta, View
from braided.store.history.manifest_log import ManifestLog

__all__ = [
    "StartingPoint",
    "fit",
    "known_names",
    "open_sources",
    "open_view",
    "refuse_other_sources",
]

log = logging.getLogger("braided")


@dataclass(frozen=True)
class StartingPoint:
    """Where a query continues."""

    view: View
    flow: str
    fresh: bool


def open_view(manifests: ManifestLog, spark_log: SparkLog, location: str) -> StartingPoint:
    """The newest view, if Spark's log agrees with it; what a power cut took of that is restored."""
    batches = manifests.batches()
    torn = spark_log.mend() if batches else []  # nothing is touched of another query's
    if torn:
        log.warning("%s was cut off or lost in %s, and is mended", ", ".join(torn), location)
    committed = spark_log.last_commit()
    newest = max(batches, default=None)
    if newest is None:
        if committed is None:
            if spark_log.is_torn(0):
                spark_log.forget(0)
            return StartingPoint(View.empty(), uuid.uuid4().hex, True)
        raise CheckpointMismatchError(
            f"the checkpoint {location} holds {committed + 1} committed batches of Spark's and no "
            "manifest of Braided's: either another query wrote it, or its braided/manifests "
            "directory was deleted and the state with it. Use a new checkpointLocation, or restore "
            "the directory"
        )
    committed = -1 if committed is None else committed
    # Spark may lack the ends of its logs, which it does not sync; but what is not known of its
    # offsets can't be told from logs of another time.
    known = manifests.read(newest).offsets != ""
    if committed > newest or (committed < newest - 1 and not known):
        raise CheckpointMismatchError(
            f"the checkpoint {location} does not fit together: Spark has committed batch "
            f"{committed}, Braided's newest manifest is of batch {newest} and the oldest of "
            f"batch {batches[0]}. Files were deleted or restored from different times"
        )
    _restore(manifests, spark_log, [b for b in batches if b >= newest - 1], location)
    planned = spark_log.last_offset()
    if planned is None or planned < newest:
        raise CheckpointMismatchError(
            f"the checkpoint {location} does not fit together: Braided's newest manifest is of "
            f"batch {newest}, of which Spark's offsets know nothing. Its offsets directory was "
            "deleted or restored from another time: restore it, or use a new checkpointLocation"
        )
    view = manifests.view_at(newest)
    return StartingPoint(view, view.flow, False)


def _restore(
    manifests: ManifestLog, spark_log: SparkLog, batches: list[int], location: str
) -> None:
    """Gives Spark back what it wrote of some batches, the newest among them, and has lost."""
    texts = {batch: text for batch in batches if (text := manifests.read(batch).offsets)}
    newest = batches[-1]
    if newest not in texts:
        return  # earlier versions kept none
    lost = spark_log.lost_sources(texts[newest])
    if lost:
        raise CheckpointMismatchError(
            f"the checkpoint {location} does not fit together: batch {newest} was committed, and "
            f"what its sources had read by then is missing from {', '.join(lost)}. Files were "
            "deleted or restored from an earlier time; input would be read twice"
        )
    restored = spark_log.restore(texts)
    if spark_log.is_torn(newest + 1, texts[newest]):
        # Planned, and nothing of it was committed: it is as if Spark had not come to it.
        spark_log.forget(newest + 1)
        restored.append(newest + 1)
    if restored:
        log.warning(
            "Spark's offsets of batches %s in %s were lost or damaged, and are restored",
            ", ".join(map(str, restored)),
            location,
        )


def refuse_other_sources(known: int | None, sources: int, location: str) -> None:
    """Where the query that planned the newest batch read more sources, or fewer: Spark would fail
    on it, with an assertion that counts a source of ours.
    """
    if known not in (None, sources):
        raise CheckpointMismatchError(
            f"the checkpoint {location} is of a query that reads another number of sources "
            f"({known}, and this one reads {sources}): read the same ones in the same order, or "
            "use a new checkpointLocation"
        )


def open_sources(
    root: Store,
    manifests: ManifestLog,
    spark_log: SparkLog,
    started: StartingPoint,
    numbers: Sequence[int],
) -> SourceLog:
    """The logs of Spark's sources, of which these are the numbers; what was replaced since it was
    committed is put back.
    """
    if started.fresh:
        return SourceLog(root, numbers=numbers)
    source_log = SourceLog(root, spark_log.offsets(started.view.batch), numbers)
    restored = source_log.restore(manifests.sources(started.view))
    if restored:
        log.warning(
            "%s in %s did not say which files had been read and committed: a driver that was taken "
            "over from has written there late. What was committed is put back, so that no file is "
            "read twice",
            ", ".join(restored),
            root.location.text,
        )
    return source_log


def known_names(
    view: View, go_by_class: Mapping[str, bool], dropped: Collection[str] = ()
) -> dict[str, str]:
    """The names by which the checkpoint knows steps that have another one now.

    Spark knows a StatefulProcessor by its position and does not mind when its class is renamed.
    Where every other operator is where it was, neither do we; anything else is left to `fit`.
    `go_by_class` has the steps of the flow in their order, and whether nobody has named them.
    """
    left = [name for name in view.operators if name not in dropped]
    before = sorted(left, key=lambda name: view.operators[name].meta.ordinal)
    if len(before) != len(go_by_class):
        return {}
    names = {}
    for old, name in zip(before, go_by_class, strict=True):
        if name == old:
            continue
        if not go_by_class[name] or name in before or old in go_by_class:
            return {}
        names[name] = old
    for name, old in names.items():
        log.warning(
            "operator %r is not in the checkpoint, which has %r where it stands in the flow: it "
            'goes on with the state of that one, and under its name. Say so with .name("%s"), or '
            "use a new checkpointLocation if it is another operator",
            name,
            old,
            old,
        )
    return names


def _drop(view: View, metas: Mapping[str, OperatorMeta], dropped: Collection[str]) -> None:
    for name in dropped:
        if name in metas:
            raise OptionError(
                f"braided.dropOperators names {name!r}, which is in the flow: leave it out of the "
                "option, or out of the flow"
            )
        if name not in view.operators:
            log.info("braided.dropOperators: the checkpoint has no operator %r (any more)", name)
            continue
        rows = sum(carried.rows for carried in view.carry if carried.operator == name)
        log.warning(
            "operator %r is dropped with its state, %d keys%s. The state of batches up to %d is "
            "kept as long as those are (braided.retainedManifests)",
            name,
            view.operators[name].keys,
            f", and {rows} rows that were left for it" if rows else "",
            view.batch,
        )


def fit(
    view: View,
    metas: Mapping[str, OperatorMeta],
    continued: Mapping[str, Callable[[OperatorMeta], OperatorMeta]],
    slots_given: int | None,
    dropped: Collection[str] = (),
) -> dict[str, OperatorMeta]:
    """The operators as the checkpoint is to know them; refuses a flow that does not continue it.

    `continued` tells, for each of them, how it goes on with the state that the checkpoint has.
    Those in `dropped` may be missing from the flow.
    """
    _drop(view, metas, dropped)
    gone = [name for name in view.operators if name not in metas and name not in dropped]
    if gone:
        raise CheckpointMismatchError(
            f"the checkpoint holds state of operator {gone[0]!r}, which is not in the flow (it "
            f"has {', '.join(map(repr, metas))}). Bring it back, give the operator that continues "
            'it that name with .name("..."), drop its state on purpose with '
            f'.option("braided.dropOperators", "{gone[0]}"), or use a new checkpointLocation'
        )
    fitted = {}
    ordinal = max((o.meta.ordinal for o in view.operators.values()), default=-1) + 1
    for name, meta in metas.items():
        known = view.operators.get(name)
        if known is None:
            if ordinal >= ORDINALS:
                raise CheckpointMismatchError(
                    f"operator {name!r} is new, and the checkpoint has no number left for it: "
                    f"operators are numbered as they come, up to {ORDINALS - 1}, and those that "
                    "were dropped keep theirs. Use a new checkpointLocation; state can be brought "
                    "there as initial state"
                )
            fitted[name] = msgspec.structs.replace(meta, ordinal=ordinal)
            ordinal += 1
            continue
        kept = known.meta
        if slots_given is not None and slots_given != kept.slots:
            raise CheckpointMismatchError(
                f"operator {name!r} has {kept.slots} slots in this checkpoint and braided.slots "
                f"asks for {slots_given}: the number is fixed at the first start. Leave the option "
                "out, or use a new checkpointLocation"
            )
        if kept.time_mode != meta.time_mode:
            raise CheckpointMismatchError(
                f"operator {name!r} has timeMode={kept.time_mode!r} in this checkpoint and is now "
                f"given {meta.time_mode!r}: its timers were set by the one clock and would all "
                "fire at once, or never, by the other. Change it back, or use a new "
                "checkpointLocation"
            )
        for what, old, new in (
            ("key columns", kept.key, meta.key),
            ("state encoding", kept.codec, meta.codec),
        ):
            if old != new:
                raise CheckpointMismatchError(
                    f"operator {name!r} does not fit the state in this checkpoint: its {what} were "
                    f"{old} and are now {new}. Change them back, {start_anew(name)}"
                )
        fitted[name] = continued[name](kept)
    return fitted
