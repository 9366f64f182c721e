"""`import_state`: the state of a native query for one of Braided's.

The checkpoint is that of a query that has not run yet. Its processor of the given name starts with
what is imported. Where its sources start is up to their options, as with any new query, or they go
on where those of the native query were: then the checkpoint begins with a batch 0 that has taken
in what the native query had, and nothing else.
"""

from __future__ import annotations

import uuid
from pathlib import PurePosixPath
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from braided.errors import CheckpointMismatchError, OptionError, UnsupportedError
from braided.kinds.processor.native_import import (
    Import,
    import_native,
    native_batch,
    read_import,
)
from braided.spark.interpreter import check_workers
from braided.spark.store_settings import session_checkpoint, session_store
from braided.store.durable.location import Location
from braided.store.durable.store import Store
from braided.store.history.manifest import Manifest
from braided.store.history.manifest_log import ManifestLog

__all__ = ["import_state"]

_SLOTS = 256
_WRITER = "import"
_BATCH = "import"
"""Where the first manifest says which native batch it begins with."""


def import_state(
    spark: SparkSession,
    native: str,
    checkpoint: str,
    name: str,
    operator: int = 0,
    slots: int = _SLOTS,
    with_offsets: bool = False,
) -> Import:
    """Leaves the state of a native operator in a checkpoint, for a processor of this name.

    `with_offsets`: the query goes on where the native one stopped. It must read the same sources,
    in the same order.
    """
    if not 1 <= slots <= 1 << 18:
        raise OptionError(f"--slots is {slots}; it takes a number from 1 to {1 << 18}")
    files = session_checkpoint(spark, checkpoint)
    manifests = ManifestLog(files)
    newest = manifests.newest()
    if newest is not None and manifests.read(newest).writer != _WRITER:
        raise CheckpointMismatchError(
            f"{checkpoint} is the checkpoint of a query that has run (its newest batch is "
            f"{newest}); state is imported before the first start"
        )
    check_workers(spark)
    if with_offsets or newest is not None:
        begun = None if newest is None else manifests.read(newest).extra.get(_BATCH)
        _check_batch(files, checkpoint, name, begun, native_batch(spark, native, operator))
    imported = import_native(spark, native, files, name, operator, slots)
    if with_offsets and newest is None:  # else an operator before this one has brought them
        source, target = (session_store(spark, Location.of(each)) for each in (native, checkpoint))
        _begin_where_it_stopped(source, target, manifests, imported.batch)
    return imported


def _check_batch(files: Store, checkpoint: str, name: str, begun: str | None, batch: int) -> None:
    """Refuses state of another batch than that whose offsets the checkpoint begins with, or than
    that of the state of other operators: rows in between would be counted twice, or never.
    """
    names = {PurePosixPath(each).stem for each in files.list("import") if each.endswith(".json")}
    found = {other: read_import(files, other) for other in sorted(names - {name})}
    differ = [
        f"that of {other!r} is of {each.batch}"
        for other, each in found.items()
        if each is not None and each.batch != batch
    ]
    if begun is not None and int(begun) != batch:
        differ.append(f"its offsets are those of {begun}")
    if differ:
        raise CheckpointMismatchError(
            f"the native query has state of batch {batch}, but in {checkpoint} "
            f"{', '.join(differ)}: rows between them would be counted twice, or never. Import all "
            "operators anew, into a new checkpoint, while the native query stands still"
        )


def _begin_where_it_stopped(
    native: Store, checkpoint: Store, manifests: ManifestLog, batch: int
) -> None:
    """Makes the native query's last batch the first one of the checkpoint."""
    try:
        offsets = native.get(f"offsets/{batch}").to_pybytes().decode()
        commit = native.get(f"commits/{batch}").to_pybytes().decode()
    except FileNotFoundError as error:
        raise CheckpointMismatchError(
            f"batch {batch}, of which the state is, was begun and not committed by the native "
            f"query ({error}): start it once more, let it finish that batch, and stop it"
        ) from None
    version, metadata, *positions = offsets.rstrip("\n").split("\n")
    if version != "v1":
        raise UnsupportedError(f"--with-offsets: the native offsets are {version}, not v1")
    times: dict[str, Any] = msgspec.json.decode(metadata)
    for name in native.list("sources"):
        checkpoint.put(name, native.get(name))
    # The last source is the one that Braided adds, which has not begun.
    own = "\n".join([version, metadata, *positions, "-"])
    # Without a name of its own Spark's part would be taken for what a power cut has left.
    checkpoint.put("metadata", msgspec.json.encode({"id": str(uuid.uuid4())}))
    checkpoint.put("offsets/0", own.encode())
    watermark = msgspec.json.decode(commit.split("\n")[1]).get("nextBatchWatermarkMs", 0)
    told = msgspec.json.encode({"nextBatchWatermarkMs": watermark}).decode()
    checkpoint.put("commits/0", f"v1\n{told}".encode())
    manifests.write(
        Manifest(
            flow=uuid.uuid4().hex,
            batch=0,
            full=True,
            writer=_WRITER,
            batch_time_ms=int(times["batchTimestampMs"]),
            watermark_ms=int(times["batchWatermarkMs"]),
            operators={},
            extra={_BATCH: str(batch)},
            offsets=own,
        )
    )
