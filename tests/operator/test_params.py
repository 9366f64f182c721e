"""Parameters of operators: settings of the class that are no state."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import Broadcast, cloudpickle
from pyspark.sql import Row

import braided
from braided.errors import OperatorDefinitionError
from braided.kinds.operator.runtime import OperatorRuntime
from braided.operator.definition import state_codec


class Threshold(braided.Operator):
    limit: braided.Param[float] = 5.0
    stored: float = 0.0

    def onRow(self, row: Any) -> Iterator[Any]:
        if row.value - self.stored > self.limit:
            self.stored = row.value
            yield row


class Labelled(Threshold):
    names: braided.Param[dict[str, int] | None] = None
    shape: braided.Param[Callable[[float], float]] = abs
    table: braided.Param[Broadcast[Any] | None] = None
    size: braided.Param[int]


def run(operator: type[braided.Operator], *values: float) -> list[Any]:
    runtime = OperatorRuntime(operator, 0)
    runtime.open(Row(id=1), None)
    return [row.value for v in values for row in runtime.op.onRow(Row(value=v))]


def test_a_parameter_has_its_default_until_it_is_set() -> None:
    assert run(Threshold, 4.0, 6.0, 13.0) == [6.0, 13.0]
    assert run(Threshold.with_(limit=10), 4.0, 6.0, 13.0) == [13.0]
    assert run(Threshold, 6.0) == [6.0]


def test_parameters_are_no_state_and_change_nothing_of_it() -> None:
    other = Threshold.with_(limit=10.0)
    assert [field.name for field in Threshold._fields] == ["stored"]
    assert other.__name__ == "Threshold"
    assert issubclass(other, Threshold)
    assert state_codec(other).describe() == state_codec(Threshold).describe()
    assert repr(other()) == "Threshold(stored=0.0)"


def test_parameters_are_set_one_after_the_other_and_inherited() -> None:
    twice = Labelled.with_(size=3).with_(limit=1.0, names=Counter("aab"))
    assert (twice.size, twice.limit, twice.names) == (3, 1.0, {"a": 2, "b": 1})

    class Strict(Threshold.with_(limit=0.5)):  # type: ignore[misc]
        seen: int = 0

    assert run(Strict, 1.0) == [1.0]
    assert [field.name for field in Strict._fields] == ["stored", "seen"]

    class Stricter(Threshold):
        limit = 0.25

    assert run(Stricter, 0.5) == [0.5]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"limt": 1.0}, r"no parameter 'limt'; its parameters are: limit, names"),
        ({"stored": 1.0}, "no parameter 'stored'"),
        ({"limit": "10"}, r"Labelled\.limit is a parameter of type float, and '10' is a str"),
        ({"limit": None}, "NoneType"),
        ({"names": {"a": "b"}}, r"dict\[str, int\] | None"),
        ({"shape": 3}, "Callable"),
        ({"table": {"a": 1}}, "Broadcast"),
        ({"size": 1.5}, "float"),
    ],
)
def test_an_unknown_name_or_a_wrong_type_is_refused_at_once(
    values: dict[str, Any], says: str
) -> None:
    with pytest.raises(OperatorDefinitionError, match=says):
        Labelled.with_(**values)


def test_a_parameter_without_a_value_is_refused_before_anything_runs() -> None:
    with pytest.raises(
        OperatorDefinitionError, match=r"Labelled\.size has no value; .*with_\(size"
    ):
        Labelled()
    Labelled.with_(size=1)()


def test_a_default_of_the_wrong_type_is_refused_where_the_class_is_defined() -> None:
    with pytest.raises(OperatorDefinitionError, match=r"Wrong\.limit is a parameter of type int"):

        class Wrong(braided.Operator):
            limit: braided.Param[int] = 0.5  # type: ignore[assignment]

            def onRow(self, row: Any) -> None: ...

    with pytest.raises(
        OperatorDefinitionError, match=r"Broken\.limit is a parameter of type float"
    ):

        class Broken(Threshold):
            limit = "much"  # type: ignore[assignment]


def test_one_name_is_either_state_or_a_parameter() -> None:
    with pytest.raises(
        OperatorDefinitionError, match=r"Both\.stored is a parameter here and state"
    ):

        class Both(Threshold):
            stored: braided.Param[float] = 1.0

    with pytest.raises(OperatorDefinitionError, match=r"Other\.limit is a field of the state here"):

        class Other(Threshold):
            limit: float = 1.0

    with pytest.raises(OperatorDefinitionError, match="Operator's own"):

        class Own(Threshold):
            opened: braided.Param[int] = 1


def test_a_hook_cannot_change_a_parameter_and_is_told_why() -> None:
    runtime = OperatorRuntime(Threshold.with_(limit=1.0), 0)
    with pytest.raises(AttributeError) as caught:
        runtime.op.limit = 3.0
    assert "same for every key" in (runtime.advice(caught.value) or "")


def test_parameters_travel_with_the_class() -> None:
    def factory() -> type[braided.Operator]:
        class Local(braided.Operator):
            limit: braided.Param[float] = 5.0
            stored: float = 0.0
            onRow = Threshold.onRow

        return Local.with_(limit=10.0)

    for operator in (Threshold.with_(limit=10.0), factory()):
        again = pickle.loads(cloudpickle.dumps(operator))
        assert run(again, 6.0, 13.0) == [13.0]
        with pytest.raises(OperatorDefinitionError):
            again.with_(limit="x")


# --- around the keys of a task ----------------------------------------------------------------


def test_what_on_open_returns_is_there_for_every_key_until_on_close() -> None:
    calls: list[Any] = []

    class Lookup(braided.Operator):
        def onOpen(self) -> dict[str, int]:
            calls.append("open")
            return {"a": 1}

        def onRow(self, row: Any) -> None:
            calls.append(self.opened[row.value])

        def onClose(self) -> None:
            calls.append(("close", self.opened))

    runtime = OperatorRuntime(Lookup, 0)
    for key in (1, 2):
        runtime.start()
        runtime.open(Row(id=key), None)
        runtime.op.onRow(Row(value="a"))
        runtime.close()
    runtime.stop()
    runtime.stop()
    assert calls == ["open", 1, 1, ("close", {"a": 1})]


def test_nothing_is_closed_that_was_not_opened() -> None:
    class Failing(braided.Operator):
        def onOpen(self) -> None:
            raise OSError("no table")

        def onRow(self, row: Any) -> None: ...

        def onClose(self) -> None:
            raise AssertionError

    runtime = OperatorRuntime(Failing, 0)
    with pytest.raises(OSError, match="no table"):
        runtime.start()
    runtime.stop()


def test_task_hooks_that_cannot_be_called_are_refused() -> None:
    with pytest.raises(OperatorDefinitionError, match=r"onOpen is called as onOpen\(self\)"):

        class Takes(braided.Operator):
            def onOpen(self, path: str) -> None: ...

            def onRow(self, row: Any) -> None: ...

    with pytest.raises(OperatorDefinitionError, match=r"onClose yields"):

        class Gives(braided.Operator):
            def onClose(self) -> Iterator[int]:
                yield 1

            def onRow(self, row: Any) -> None: ...
