"""`ColumnOperator` classes: what is a field, what is refused, and that they travel."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import braided
from braided.errors import OperatorDefinitionError
from braided.operator.columns import column_codec


class Features(braided.ColumnOperator):
    rate: braided.Param[float] = 0.5
    LIMIT: ClassVar[int] = 3
    count: pa.int64() = 0
    mean: Annotated[float, pa.float64()] = 0.0
    embedding: pa.list_(pa.float32(), 4) = None

    def onRows(self, state: Any, rows: Any, index: Any) -> Any:
        return {"count": state["count"]}


class Reminded(Features):
    mean: pa.float64() = 1.0

    def onDue(self, state: Any, due: Any) -> None:
        pass


def test_annotated_arrow_types_are_fields_and_due_comes_with_its_hook() -> None:
    assert [(f.name, f.type, f.default) for f in Features._fields] == [
        ("count", pa.int64(), 0),
        ("mean", pa.float64(), 0.0),
        ("embedding", pa.list_(pa.float32(), 4), None),
    ]
    assert [f.name for f in Reminded._fields] == ["count", "mean", "embedding", "due"]
    assert Reminded._fields[1].default == 1.0
    assert Features.LIMIT == 3


def test_an_instance_keeps_nothing() -> None:
    op: Any = Features()
    with pytest.raises(AttributeError):
        op.count = 1
    with pytest.raises(AttributeError):
        op.cache = {}
    assert not hasattr(op, "count")


def test_parameters_are_set_and_the_state_stays_the_same() -> None:
    faster = Features.with_(rate=0.9)
    assert faster().rate == 0.9 and Features().rate == 0.5
    assert column_codec(faster).describe() == column_codec(Features).describe()
    with pytest.raises(OperatorDefinitionError, match="no parameter 'speed'"):
        Features.with_(speed=1)


def test_a_class_of_main_travels() -> None:
    space = {"braided": braided, "pa": pa, "__name__": "__main__"}
    source = (
        "class Local(braided.ColumnOperator):\n"
        "    n: pa.int64() = 5\n"
        "    def onRows(self, state, rows, index):\n"
        "        return None\n"
    )
    exec(compile(source, "main", "exec", dont_inherit=True), space)
    found: Any = cloudpickle.loads(cloudpickle.dumps(space["Local"]))
    assert column_codec(found).fresh == column_codec(space["Local"]).fresh
    with pytest.raises(AttributeError):
        found().n = 1


def _none(self: Any, state: Any, rows: Any, index: Any) -> None:
    """Does nothing."""


async def _async(self: Any, state: Any, rows: Any, index: Any) -> None:
    """Never."""


def _yields(self: Any, state: Any, rows: Any, index: Any) -> Any:
    yield state


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"n": (int, 0)}, "annotated with an Arrow type"),
        ({"n": (pa.int64(), "x")}, "its default 'x' does not fit the type int64"),
        ({"n": (pa.uint8(), 0)}, "signed"),
        ({"n": (pa.int64(), ...)}, "no default"),
        ({"_n": (pa.int64(), 0)}, "underscore"),
        ({"due": (pa.int64(), 0)}, "a class that has onDue has it"),
        ({"remove": (pa.bool_(), False)}, "which keys to drop"),
        ({"keys": (pa.int64(), 0)}, "choose another"),
        ({}, "no fields"),
        ({"n": (pa.int64(), 0), "onRows": None}, "no onRows"),
        ({"n": (pa.int64(), 0), "onRow": _none}, "a hook of braided.Operator"),
        ({"n": (pa.int64(), 0), "onRows": _async}, "async"),
        ({"n": (pa.int64(), 0), "onRows": _yields}, "returns the new state"),
        ({"n": (pa.int64(), 0), "onRows": lambda self, rows: None}, "state, rows, index"),
        ({"n": (pa.int64(), 0), "onDue": lambda self: None}, r"onDue\(self, state, due\)"),
        ({"n": (pa.int64(), 0), "upgrade": lambda old: old}, "classmethod"),
        ({"n": (pa.int64(), 0), "__init__": _none}, "would not run for each key"),
        (
            {"n": (pa.int64(), braided.merged("sum", default=0)), "m": (pa.int64(), 0)},
            "m does not fit",
        ),
    ],
)
def test_what_can_not_run_is_refused_when_it_is_defined(body: dict[str, Any], said: str) -> None:
    space: dict[str, Any] = {"__module__": __name__, "__qualname__": "Wrong", "onRows": _none}
    space["__annotations__"] = {k: v[0] for k, v in body.items() if isinstance(v, tuple)}
    for name, value in body.items():
        space[name] = value[1] if isinstance(value, tuple) else value
        if space[name] is ... or space[name] is None:
            del space[name]
    with pytest.raises(OperatorDefinitionError, match=said):
        type(braided.ColumnOperator)("Wrong", (braided.ColumnOperator,), space)
