"""`import_state`: the state of a native query for one of Braided's.

The checkpoint is that of a query that has not run yet. Its processor of the given name starts with
what is imported; where its sources start is up to their options, as with any new query.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from braided.errors import CheckpointMismatchError, OptionError
from braided.kinds.processor.native_import import Import, import_native
from braided.spark.interpreter import check_workers
from braided.spark.store_settings import session_checkpoint
from braided.store.history.manifest_log import ManifestLog

__all__ = ["import_state"]

_SLOTS = 256


def import_state(
    spark: SparkSession,
    native: str,
    checkpoint: str,
    name: str,
    operator: int = 0,
    slots: int = _SLOTS,
) -> Import:
    """Leaves the state of a native operator in a checkpoint, for a processor of this name."""
    if not 1 <= slots <= 1 << 18:
        raise OptionError(f"--slots is {slots}; it takes a number from 1 to {1 << 18}")
    files = session_checkpoint(spark, checkpoint)
    newest = ManifestLog(files).newest()
    if newest is not None:
        raise CheckpointMismatchError(
            f"{checkpoint} is the checkpoint of a query that has run (its newest batch is "
            f"{newest}); state is imported before the first start"
        )
    check_workers(spark)
    return import_native(spark, native, files, name, operator, slots)
