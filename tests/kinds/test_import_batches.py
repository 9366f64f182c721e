"""State that is imported for several operators is that of one native batch."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from braided.errors import CheckpointMismatchError
from braided.import_state import _check_batch
from braided.kinds.processor.native_import import Import
from braided.store.durable.local_store import LocalStore
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
