"""Whether a flow continues the state of a checkpoint, decided from descriptions alone."""

from __future__ import annotations

import msgspec
import pytest

from braided.errors import CheckpointMismatchError, OptionError
from braided.query.checkpoint import fit, known_names
from braided.store.history.manifest import OperatorMeta, OperatorVersion, View
from braided.store.records.codec import StateCodec
from braided.store.records.state_fields import Field

CODEC = StateCodec("Totals", [Field("total", int, 0)])
META = OperatorMeta(
    ordinal=0, slots=8, key="struct<k:string>", state=CODEC.describe(), codec="msgpack-1"
)
CONTINUED = {"Totals": lambda kept: kept}


def view_of(meta: OperatorMeta) -> View:
    return View("flow", 3, {"Totals": OperatorVersion.empty(meta)}, ())


@pytest.mark.parametrize("before", ["ProcessingTime", "EventTime"])
def test_another_time_mode_is_refused_by_operator(before: str) -> None:
    after = "EventTime" if before == "ProcessingTime" else "ProcessingTime"
    kept = msgspec.structs.replace(META, time_mode=before)
    given = msgspec.structs.replace(META, time_mode=after)
    with pytest.raises(CheckpointMismatchError, match=rf"'Totals' has timeMode='{before}'.*timers"):
        fit(view_of(kept), {"Totals": given}, CONTINUED, None)
    assert fit(view_of(kept), {"Totals": kept}, CONTINUED, None) == {"Totals": kept}


def _view(*names: str) -> View:
    metas = [msgspec.structs.replace(META, ordinal=i) for i in range(len(names))]
    operators = {n: OperatorVersion.empty(m) for n, m in zip(names, metas, strict=True)}
    return View("flow", 3, dict(sorted(operators.items())), ())


def test_a_renamed_class_is_found_by_its_position(caplog: pytest.LogCaptureFixture) -> None:
    view = _view("Sums", "Alerts", "Sums-2")
    renamed = {"Totals": True, "Alerts": False, "Totals-2": True}
    assert known_names(view, renamed) == {"Totals": "Sums", "Totals-2": "Sums-2"}
    first, second = caplog.messages
    assert "'Totals' is not in the checkpoint" in first and '.name("Sums")' in first
    assert '.name("Sums-2")' in second


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (("A", "B"), {"A": True, "B": True}),
        (("A",), {"X": False}),  # somebody has named it
        (("A", "B"), {"X": True}),  # one is gone: which?
        (("A",), {"A": True, "X": True}),  # one is new
        (("A", "B"), {"X": True, "A": True}),  # one has moved
        ((), {"X": True}),
    ],
)
def test_whatever_else_has_changed_is_not_guessed(
    before: tuple[str, ...], now: dict[str, bool], caplog: pytest.LogCaptureFixture
) -> None:
    assert known_names(_view(*before), now) == {}
    assert not caplog.messages


def test_an_operator_is_dropped_on_purpose_only(caplog: pytest.LogCaptureFixture) -> None:
    view, metas = _view("a", "b"), {"a": META}
    continued = {"a": lambda kept: kept}
    with pytest.raises(CheckpointMismatchError, match=r'braided.dropOperators", "b"'):
        fit(view, metas, continued, None)
    assert fit(view, metas, continued, None, ("b", "never")) == metas
    assert "operator 'b' is dropped with its state, 0 keys." in caplog.text
    with pytest.raises(OptionError, match="names 'a', which is in the flow"):
        fit(view, metas, continued, None, ("a", "b"))
    assert known_names(view, {"c": True}, ("b",)) == {"c": "a"}


def test_a_checkpoint_that_has_had_too_many_operators_says_so() -> None:
    last = msgspec.structs.replace(META, ordinal=255)
    with pytest.raises(CheckpointMismatchError, match=r"'b' is new, .* no number left.* to 255"):
        fit(view_of(last), {"b": META}, {}, None, ("Totals",))
    before = msgspec.structs.replace(META, ordinal=254)
    assert fit(view_of(before), {"b": META}, {}, None, ("Totals",))["b"].ordinal == 255
