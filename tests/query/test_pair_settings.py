"""Which operators count pairs of keys, and which keys can be given slots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from braided.flow.graph import Keyed, Side
from braided.flow.key_hashes import KeyHashes
from braided.flow.route import GroupingKeys
from braided.kinds.aggregate.step import AggregateStep
from braided.kinds.columnar.step import ColumnStep
from braided.kinds.operator.step import OperatorStep
from braided.kinds.processor.step import ProcessorStep
from braided.query.pair_settings import pair_targets
from braided.store.slots.key_codec import KeyCodec

ROWS = StructType([StructField("place", StringType()), StructField("tag", LongType())])


def _step(kind: Any, name: str, key: str) -> Any:
    schema = StructType([ROWS[key]])
    return kind(name, cast(Any, None), schema, GroupingKeys((key,)), ROWS, ROWS, "None")


def _targets(first: Any, second: Any) -> dict[str, list[str]]:
    """What is counted where one operator, by place, feeds another, by tag."""
    one = Keyed(_step(first, "first", "place"), ())
    two = Keyed(_step(second, "second", "tag"), (Side(one, GroupingKeys(("tag",))),))
    flow = SimpleNamespace(keyed=(one, two), step=lambda node: node.step)
    found = pair_targets(cast(Any, flow), cast(Any, None))
    return {name: [each.operator for each in targets] for name, targets in found.items()}


def test_operators_that_do_not_know_whose_row_they_give_out_have_no_targets() -> None:
    assert _targets(OperatorStep, OperatorStep) == {"first": ["second"]}
    assert _targets(OperatorStep, ColumnStep) == {"first": ["second"]}
    assert _targets(ColumnStep, OperatorStep) == {}
    assert ProcessorStep.counts_pairs and not AggregateStep.counts_pairs


def test_only_keys_in_the_form_of_the_state_are_given_slots() -> None:
    schema = StructType([ROWS["tag"]])
    step = SimpleNamespace(name="o", key_schema=schema, can_be_pinned=False)
    hashes = KeyHashes(cast(Any, None), [cast(Any, step)])
    keys = KeyCodec(pa.schema([("tag", pa.int64())])).encode_batch([pa.array([1, None, 1 << 40])])
    assert hashes.assigned("o", keys, [0, 0, 0]) is None  # not refused, but not to be told apart
    assert hashes.assigned("o", [], []) is None
    one_in_nine_bytes = b"\x91\xd3" + (1).to_bytes(8, "big")
    assert msgspec.msgpack.decode(one_in_nine_bytes) == [1]
    for other in (one_in_nine_bytes, b"", b"\x90", b"\x92\x01\x01", b"\x91\xa1a"):
        with pytest.raises(ValueError, match=r"."):
            hashes.assigned("o", [*keys, other], [0, 0, 0, 0])
