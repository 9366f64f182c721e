"""Pieces of native state as the tasks of an import write them, without Spark."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa

from braided.kinds.processor.native_import import _ImportWriter
from braided.store.durable.local_store import LocalStore
from braided.store.history.runs import RunFile, read_run
from braided.store.slots.layout import CHUNK, EXPIRY
from braided.store.variables.declared import Declaration, Declared
from braided.store.variables.layout import expiry_bound
from braided.store.variables.variables import expiry_of


def test_imported_lists_keep_their_own_expiry(tmp_path: Path) -> None:
    """A value after a list, and the next key, have other times."""
    empty = {"type": "struct", "fields": []}
    variables = [
        Declaration(name, kind, empty, None, True, number)
        for number, (name, kind) in enumerate([("l", "list"), ("v", "value")])
    ]
    one, two = (msgspec.msgpack.encode((key,)) for key in (1, 2))
    pieces = [
        (one, 0, 0, 0, b"\xa1a", 1_000),
        (one, 0, 0, 1, b"\xa1b", 1_000),
        (one, 0, 0, 2, b"\xa1c", 2_000),
        (one, 0, 1, 3, b"\xa1v", 9_000),
        (two, 0, 0, 0, b"\xa1d", 2_000),
        (two, 0, 1, 1, b"\xa1v", 8_000),
    ]
    key, slot, variable, sequence, data, expiry = zip(*pieces, strict=True)
    chunk = pa.RecordBatch.from_arrays(
        [
            pa.array(key, pa.binary()),
            pa.array(slot, pa.int32()),
            pa.array(variable, pa.int32()),
            pa.array(sequence, pa.int64()),
            pa.array([None] * len(pieces), pa.binary()),
            pa.array(data, pa.binary()),
            pa.array(expiry, pa.int64()),
        ],
        names=["key", "slot", "variable", "sequence", "user", "data", "expiry"],
    )
    write = _ImportWriter(
        Declared(variables=tuple(variables)).describe(), LocalStore(tmp_path), "p"
    )
    [written] = next(write(iter([chunk]))).to_pylist()
    run = RunFile(*(written[name] for name in ("name", "digest", "bytes", "slots", "footer")))
    [(_, suffixes, values)] = read_run(LocalStore(tmp_path), run)
    content = dict(zip(suffixes, values, strict=True))
    lists = [expiry_of(value) for place, value in content.items() if place[:1] == CHUNK]
    assert sorted(lists) == [1_000, 2_000, 2_000]
    notes = [place for place in content if place[:1] == EXPIRY]
    times = map(expiry_bound, (1_000, 2_000, 2_000, 8_000, 9_000))
    assert all(place.startswith(time) for place, time in zip(sorted(notes), times, strict=True))
