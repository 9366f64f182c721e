"""State that is imported for several operators is that of one native batch."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from braided.errors import CheckpointMismatchError
from braided.import_state import _begin_where_it_stopped, _check_batch
from braided.kinds.processor.native_import import Import
from braided.spark.offset_log import SparkLog
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest_log import ManifestLog
from braided.tasks.first_state import FirstState, import_path


def test_state_of_another_batch_than_the_offsets_or_other_operators_is_refused(
    tmp_path: Path,
) -> None:
    files = LocalStore(tmp_path)
    _check_batch(files, "c", "b", None, 12)
    of_other = Import("int", 16, "None", "", 10, FirstState())
    files.put(import_path("a"), msgspec.json.encode(of_other))
    _check_batch(files, "c", "b", "10", 10)
    _check_batch(files, "c", "a", None, 12)  # what it had is replaced
    with pytest.raises(CheckpointMismatchError, match="batch 12, but in c that of 'a' is of 10"):
        _check_batch(files, "c", "b", None, 12)
    with pytest.raises(CheckpointMismatchError, match="its offsets are those of 10"):
        _check_batch(files, "c", "a", "10", 12)


def test_a_checkpoint_that_begins_with_native_offsets_lacks_nothing(tmp_path: Path) -> None:
    native, checkpoint = LocalStore(tmp_path / "native"), LocalStore(tmp_path / "moved")
    times = b'{"batchWatermarkMs":5,"batchTimestampMs":9}'
    native.put("offsets/3", b"\n".join([b"v1", times, b'{"logOffset":3}']))
    native.put("commits/3", b'v1\n{"nextBatchWatermarkMs":7}')
    manifests = ManifestLog(LocalStore(tmp_path / "moved" / "braided"))
    _begin_where_it_stopped(native, checkpoint, manifests, 3)
    begun = SparkLog(checkpoint)
    assert begun.mend() == [], "nothing looks cut off, and nobody is warned of it"
    assert begun.offsets(0).split("\n")[2:] == ['{"logOffset":3}', "-"]
