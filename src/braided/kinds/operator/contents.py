"""What a checkpoint holds, key by key: to compare a query's state with what it should be.

Reads durable files only, never a cache, so what it shows is what any restart would find.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from braided.operator.definition import Operator, state_codec
from braided.store.durable.files import checkpoint_files
from braided.store.history.manifest_log import Manifests
from braided.store.slots.channel_state import ChannelState, Limits
from braided.store.slots.keys import RECORD, RECORD_LONG, KeyCodec, unwrap
from braided.tasks.rows import RowFactory

__all__ = ["newest_batch", "state_of"]

_RECORDS = (RECORD, RECORD_LONG)


def newest_batch(checkpoint: str | Path) -> int:
    """The newest batch that has a manifest; -1 when there is none."""
    newest = Manifests(checkpoint_files(Path(checkpoint))).newest()
    return -1 if newest is None else newest


def state_of(
    checkpoint: str | Path, name: str, operator: type[Operator], key: StructType
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The fields of every key of an operator at the newest manifest.

    `key` is the schema of the grouping columns. Nothing must write the checkpoint meanwhile.
    """
    files = checkpoint_files(Path(checkpoint))
    manifests = Manifests(files)
    view = manifests.view_at(newest_batch(checkpoint)).operators.get(name)
    if view is None:
        return {}
    keys, rows = KeyCodec(to_arrow_schema(key, timezone="UTC")), RowFactory(key)
    codec, op = state_codec(operator).at(view.meta.history), operator()
    state = ChannelState(files, None, name, view, Limits())
    slots = range(view.meta.slots)
    state.prepare(slots)
    places, fields = [], []
    for number in slots:
        for suffix, raw in state.slot(number).scan(b""):
            if suffix[:1] not in _RECORDS:
                continue  # a timer
            place, record = unwrap(suffix, raw)
            codec.load(op, record)
            places.append(place)
            fields.append({f.name: getattr(op, f.name) for f in codec.fields})
    state.close()
    return dict(zip(rows.rows_of(keys.decode_batch(places)), fields, strict=True))
