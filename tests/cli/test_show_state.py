"""`braided state`: what it says of a checkpoint before it reads any key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from braided.cli.show_state import summary
from braided.inspect.versions import Versions
from braided.store.durable.open_store import checkpoint_store
from compat.fixture import unpack

_SETS = Path(__file__).parents[1] / "compat" / "checkpoints"
SAID = {
    "operator": r"Kept: 5 keys, .* by struct<k:string>; fields count, total, odd",
    "processors": r"counting: 5 keys, .* fields counts, last",
    "columns": r"\w+: \d+ keys, .* by struct<\S+>; fields \w+",
    "aggregates": r"fields .*(sum|count)\(",
}


@pytest.mark.parametrize("kind", SAID)
def test_every_kind_of_operator_is_told_with_its_fields(tmp_path: Path, kind: str) -> None:
    archive = min(_SETS.glob(f"*/{kind}.tar.gz"))
    unpack(archive, tmp_path)
    checkpoint = str(tmp_path / "checkpoint")
    versions = Versions(checkpoint_store(checkpoint))
    lines = summary(checkpoint, versions, versions.view(None))
    assert re.search(SAID[kind], "\n".join(lines[1:])), lines
