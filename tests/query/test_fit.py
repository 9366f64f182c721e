"""Whether a flow continues the state of a checkpoint, decided from descriptions alone."""

from __future__ import annotations

import msgspec
import pytest

from braided.errors import CheckpointMismatchError
from braided.query.checkpoint import fit
from braided.store.history.manifest import OperatorMeta, OperatorView, View
from braided.store.records.codec import Field, StateCodec

CODEC = StateCodec("Totals", [Field("total", int, 0)])
META = OperatorMeta(
    ordinal=0, slots=8, key="struct<k:string>", state=CODEC.describe(), codec="msgpack-1"
)
CONTINUED = {"Totals": lambda kept: kept}


def view_of(meta: OperatorMeta) -> View:
    return View("flow", 3, {"Totals": OperatorView.empty(meta)}, ())


@pytest.mark.parametrize("before", ["ProcessingTime", "EventTime"])
def test_another_time_mode_is_refused_by_operator(before: str) -> None:
    after = "EventTime" if before == "ProcessingTime" else "ProcessingTime"
    kept = msgspec.structs.replace(META, time_mode=before)
    given = msgspec.structs.replace(META, time_mode=after)
    with pytest.raises(CheckpointMismatchError, match=rf"'Totals' has timeMode='{before}'.*timers"):
        fit(view_of(kept), {"Totals": given}, CONTINUED, None)
    assert fit(view_of(kept), {"Totals": kept}, CONTINUED, None) == {"Totals": kept}
