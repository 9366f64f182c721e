"""Operator classes: fields as state, what is refused at definition, one key after another."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import Row

from braided.errors import OperatorDefinitionError, OutputSchemaError, StateValueError
from braided.kinds.operator.runtime import OperatorRuntime
from braided.operator.definition import Operator, state_codec
from braided.operator.times import as_datetime, as_ms


@dataclass
class Trade:
    price: Decimal
    sizes: list[int] = field(default_factory=list)


class Count(Operator):
    LIMIT = 100
    seen_by_all: ClassVar[int] = 0
    count: int = 0
    total: float = 0.0
    last: dict[str, Trade] = {}  # noqa: RUF012

    def onRow(self, row: Any) -> Iterator[Any]:
        self.count += 1
        self.total += row.value
        yield (self.count, self.total)


class Reminder(Operator):
    fired: int = 0

    def onRow(self, row: Any) -> None:
        self.setTimer(row.at)

    def onTimer(self, fired: datetime) -> None:
        self.fired += 1


KEY = Row(id=1)
BATCH_MS = 1_700_000_000_123


def runtime(operator: type[Operator]) -> OperatorRuntime:
    return OperatorRuntime(operator, BATCH_MS)


# --- fields -----------------------------------------------------------------------------------


def test_annotated_fields_are_the_state_in_order() -> None:
    assert [f.name for f in Count._fields] == ["count", "total", "last"]
    assert Count._fields[2].type == dict[str, Trade]
    assert not hasattr(Count, "total")
    assert Count.LIMIT == 100


def test_an_instance_starts_with_defaults_of_its_own() -> None:
    one, other = Count(), Count()
    one.last["x"] = Trade(Decimal(1))
    assert (other.count, other.total, other.last) == (0, 0.0, {})
    assert isinstance(one, Count)
    assert repr(other) == "Count(count=0, total=0.0, last={})"


def test_an_undeclared_attribute_is_refused_with_advice() -> None:
    run = runtime(Count)
    with pytest.raises(AttributeError) as caught:
        run.op.cuont = 1
    assert "declare `cuont:" in (run.advice(caught.value) or "")
    assert not hasattr(run.op, "__dict__")
    assert run.advice(ValueError("x")) is None
    with pytest.raises(AttributeError):
        run.op.LIMIT = 3


@pytest.mark.parametrize("value", [[], {}, set(), bytearray(), deque()])
def test_what_all_keys_would_share_is_refused(value: Any) -> None:
    with pytest.raises(OperatorDefinitionError, match=r"Seen\.rows is a .* all keys .* share"):
        type(Operator)(
            "Seen",
            (Operator,),
            {"__qualname__": "Seen", "rows": value, "onRow": lambda self, row: None},
        )


def test_constants_may_be_shared() -> None:
    class Known(Operator):
        NAMES: ClassVar[dict[str, int]] = {"a": 1}
        KINDS = ("a", "b")
        rows: list[int] = []  # noqa: RUF012

        def onRow(self, row: Any) -> Any:
            return [(self.NAMES, self.KINDS)]

    class Further(Known):
        rows = [1]  # noqa: RUF012 - a new default of the field

    assert [f.default for f in Further._fields] == [[1]]


def test_inherited_fields_come_first_and_can_have_new_defaults() -> None:
    class Base(Operator, abstract=True):
        a: int = 1
        b: int = 2

    class Child(Base):
        b = 20
        c: str = "c"

        def onRow(self, row: Any) -> Any:
            return [(self.a, self.b, self.c)]

    assert [(f.name, f.default) for f in Child._fields] == [("a", 1), ("b", 20), ("c", "c")]
    assert Child().onRow(None) == [(1, 20, "c")]
    assert [f.default for f in Base._fields] == [1, 2]


def test_two_operator_bases_and_super_work() -> None:
    class Left(Operator, abstract=True):
        left: int = 1

        def tell(self) -> str:
            return "left"

    class Right(Operator, abstract=True):
        right: int = 2

    class Both(Left, Right):
        def tell(self) -> str:
            return super().tell() + "+"

        def onRow(self, row: Any) -> Any:
            return [(self.left, self.right, self.tell())]

    assert Both().onRow(None) == [(1, 2, "left+")]


def test_types_local_to_a_function_are_found() -> None:
    @dataclass
    class Inner:
        price: Decimal
        next: Inner | None = None

    class Local(Operator):
        items: dict[str, Inner] = {}  # noqa: RUF012

        def onRow(self, row: Any) -> None:
            self.items["a"] = Inner(Decimal("1.5"), Inner(Decimal(2)))

    run = runtime(Local)
    run.open(KEY, None)
    run.op.onRow(None)
    raw = run.close()
    run.open(KEY, raw)
    assert run.op.items == {"a": Inner(Decimal("1.5"), Inner(Decimal(2)))}


# --- refusals ---------------------------------------------------------------------------------


def test_a_class_without_hooks_is_refused() -> None:
    with pytest.raises(OperatorDefinitionError, match="Idle has none of onRow"):

        class Idle(Operator):
            count: int = 0


def test_two_ways_for_rows_are_refused() -> None:
    with pytest.raises(OperatorDefinitionError, match="both onRow and onBatch"):

        class Twice(Count):
            def onBatch(self, rows: Any) -> None: ...


def test_a_field_without_a_default_is_refused() -> None:
    with pytest.raises(OperatorDefinitionError, match=r"Bare\.count has no default"):

        class Bare(Operator):
            count: int

            def onRow(self, row: Any) -> None: ...


def test_a_type_that_cannot_be_stored_is_refused_by_field_name() -> None:
    with pytest.raises(OperatorDefinitionError, match=r"Holder\.thing.*object"):

        class Holder(Operator):
            thing: object = None

            def onRow(self, row: Any) -> None: ...


def test_an_unknown_name_in_an_annotation_is_refused() -> None:
    with pytest.raises(OperatorDefinitionError, match=r"Lost\.x.*Nowhere"):

        class Lost(Operator):
            x: Nowhere = None  # type: ignore[name-defined]  # noqa: F821

            def onRow(self, row: Any) -> None: ...


@pytest.mark.parametrize("name", ["key", "timers", "forget", "onRow", "batchTime", "watermark"])
def test_the_names_of_operator_itself_are_refused(name: str) -> None:
    space = {"__annotations__": {name: int}, name: 0, "__module__": __name__, "__qualname__": "X"}
    with pytest.raises(OperatorDefinitionError, match=rf"X\.{name}"):
        type(Operator)("X", (Operator,), space)


def test_a_private_field_is_refused() -> None:
    with pytest.raises(OperatorDefinitionError, match=r"Private\._count"):

        class Private(Operator):
            _count: int = 0

            def onRow(self, row: Any) -> None: ...


@pytest.mark.parametrize("name", ["__init__", "__slots__", "__getattr__", "__setattr__"])
def test_what_would_get_in_the_way_of_state_is_refused(name: str) -> None:
    space = {name: lambda self: None, "__module__": __name__, "__qualname__": "X"}
    with pytest.raises(OperatorDefinitionError, match=f"X defines {name}"):
        type(Operator)("X", (Operator,), space)


def test_a_mixin_with_a_dict_is_refused() -> None:
    class Loose:
        pass

    with pytest.raises(OperatorDefinitionError, match=r"Loose.*__slots__"):

        class Mixed(Loose, Operator):
            def onRow(self, row: Any) -> None: ...


def test_a_struct_that_cannot_travel_is_refused() -> None:
    class Here(msgspec.Struct):
        x: int = 0

    with pytest.raises(OperatorDefinitionError, match=r"Stuck .*Here.*importable module"):

        class Stuck(Operator):
            here: Here = Here()

            def onRow(self, row: Any) -> None: ...


def test_a_hook_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(OperatorDefinitionError, match=r"NoArgument\.onRow is called as"):

        class NoArgument(Operator):
            def onRow(self) -> None: ...

    with pytest.raises(OperatorDefinitionError, match="async"):

        class Later(Operator):
            async def onRow(self, row: Any) -> None: ...


# --- one key after another --------------------------------------------------------------------


def test_each_key_has_its_own_state() -> None:
    run = runtime(Count)
    records: dict[int, bytes | None] = {}
    for key, value in [(1, 1.0), (2, 10.0), (1, 2.0), (2, 20.0), (1, 4.0)]:
        run.open(Row(id=key), records.get(key))
        assert run.op.key == Row(id=key)
        list(run.rows_of(run.op.onRow(Row(value=value)), "onRow"))
        records[key] = run.close()
    run.open(KEY, records[1])
    assert (run.op.count, run.op.total) == (3, 7.0)
    run.open(KEY, records[2])
    assert (run.op.count, run.op.total) == (2, 30.0)


def test_a_key_that_is_as_new_has_no_record() -> None:
    run = runtime(Count)
    run.open(KEY, None)
    assert run.close() is None


def test_an_unchanged_record_is_the_very_same_object() -> None:
    run = runtime(Count)
    run.open(KEY, None)
    run.op.count = 1
    raw = run.close()
    run.open(KEY, raw)
    assert run.close() is raw


def test_a_known_key_back_at_its_defaults_keeps_its_record() -> None:
    run = runtime(Count)
    run.open(KEY, None)
    run.op.count = 1
    raw = run.close()
    run.open(KEY, raw)
    run.op.count = 0
    assert run.close() == state_codec(Count).fresh


def test_forget_drops_the_key_and_its_timers() -> None:
    run = runtime(Reminder)
    run.open(KEY, None)
    run.op.fired = 3
    run.op.setTimer(50)
    raw = run.close()
    assert (list(run.added), list(run.removed)) == ([50], [])
    run.open(KEY, raw)
    run.op.forget()
    assert run.op.fired == 0
    assert run.op.timers() == []
    assert run.close() is None
    assert (list(run.added), list(run.removed)) == ([], [50])


def test_what_is_written_after_forget_starts_the_key_anew() -> None:
    run = runtime(Reminder)
    run.open(KEY, None)
    run.op.fired = 3
    raw = run.close()
    run.open(KEY, raw)
    run.op.forget()
    run.op.fired += 1
    raw = run.close()
    run.open(KEY, raw)
    assert run.op.fired == 1
    assert run.close() is raw  # forgetting ends with the key


def test_a_value_that_does_not_fit_fails_when_the_key_is_closed() -> None:
    run = runtime(Count)
    run.open(KEY, None)
    run.op.total = "much"
    with pytest.raises(StateValueError, match=r"Count\.total holds 'much' of type str"):
        run.close()


# --- timers and times -------------------------------------------------------------------------


def test_a_timer_fires_once_and_is_gone() -> None:
    run = runtime(Reminder)
    run.open(KEY, None)
    run.op.onRow(Row(at=70))
    run.op.onRow(Row(at=70))
    run.op.onRow(Row(at=90))
    raw = run.close()
    assert list(run.added) == [70, 90]
    run.open(KEY, raw)
    run.fire(70)
    run.fire(70)
    assert run.op.fired == 1
    assert run.op.timers() == [as_datetime(90)]
    run.close()
    assert (list(run.added), list(run.removed)) == ([], [70])


def test_a_timer_taken_back_by_another_does_not_fire() -> None:
    class Pair(Operator):
        fired: int = 0

        def onTimer(self, fired: datetime) -> None:
            self.fired += 1
            self.deleteTimer(2)

    run = runtime(Pair)
    run.open(KEY, None)
    run.op.setTimer(1)
    run.op.setTimer(2)
    raw = run.close()
    run.open(KEY, raw)
    run.fire(1)
    run.fire(2)
    assert run.op.fired == 1
    run.close()
    assert list(run.removed) == [1, 2]


def test_a_timer_set_again_while_it_fires_stays() -> None:
    class Again(Operator):
        def onTimer(self, fired: datetime) -> None:
            self.setTimer(fired)

    run = runtime(Again)
    run.open(KEY, None)
    run.op.setTimer(5)
    raw = run.close()
    run.open(KEY, raw)
    run.fire(5)
    assert run.close() is raw
    assert (list(run.added), list(run.removed)) == ([], [])


def test_a_timer_without_on_timer_is_refused() -> None:
    run = runtime(Count)
    run.open(KEY, None)
    with pytest.raises(OperatorDefinitionError, match="no onTimer"):
        run.op.setTimer(1)


@pytest.mark.parametrize("when", ["soon", 1.5, True, None, timedelta(1)])
def test_a_time_is_a_datetime_or_milliseconds(when: Any) -> None:
    with pytest.raises(TypeError, match="datetime or an int"):
        as_ms(when)


@given(st.integers(-62_000_000_000_000, 250_000_000_000_000))
def test_milliseconds_survive_as_local_time(ms: int) -> None:
    assert as_ms(as_datetime(ms)) == ms


def test_a_timer_is_never_early() -> None:
    moment = datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert as_ms(moment) == as_ms(datetime(2024, 1, 1, tzinfo=UTC)) + 1


def test_batch_time_and_watermark_are_local_times() -> None:
    run = OperatorRuntime(Count, BATCH_MS, BATCH_MS - 1000)
    assert run.op.batchTime == datetime.fromtimestamp(BATCH_MS // 1000).replace(microsecond=123000)
    assert run.op.batchTime - run.op.watermark == timedelta(seconds=1)
    assert runtime(Count).op.watermark is None


# --- what hooks return ------------------------------------------------------------------------


def test_hooks_may_yield_return_an_iterable_or_none() -> None:
    run = runtime(Count)
    assert list(run.rows_of(None, "onRow")) == []
    assert list(run.rows_of([(1,), (2,)], "onRow")) == [(1,), (2,)]
    assert list(run.rows_of(iter([(1,)]), "onRow")) == [(1,)]
    table = pa.table({"a": [1]})
    assert list(run.rows_of(table, "onBatch")) == [table]


@pytest.mark.parametrize("result", [{"a": 1}, Row(a=1), "text", b"bytes", 5])
def test_a_single_row_returned_is_refused(result: Any) -> None:
    with pytest.raises(OutputSchemaError, match=r"Count\.onRow returned .*yield each"):
        runtime(Count).rows_of(result, "onRow")


# --- classes travel to workers ----------------------------------------------------------------

WORKER = """
import pickle, sys
from pyspark.sql import Row
from braided.kinds.operator.runtime import OperatorRuntime

with open(sys.argv[1], "rb") as file:
    for _ in range(2):  # a worker is sent the class again with each batch
        file.seek(0)
        operator = pickle.load(file)
        run = OperatorRuntime(operator, 0)
        raw = None
        for value in (1.0, 2.0):
            run.open(Row(id=1), raw)
            out = list(run.op.onRow(Row(value=value)))
            raw = run.close()
        run.open(Row(id=1), raw)
        try:
            run.op.undeclared = 1
        except AttributeError:
            print(out, run.op)
"""

PROGRAM = """
from __future__ import annotations
import enum, sys
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import ClassVar, NamedTuple
from pyspark import cloudpickle
from braided.operator.definition import Operator

FACTOR = 10

class Kind(enum.Enum):
    A = "a"

class Pair(NamedTuple):
    x: int
    day: date

@dataclass
class Level:
    price: Decimal
    pairs: list[Pair] = field(default_factory=list)

class Base(Operator, abstract=True):
    count: int = 0
    step: ClassVar[int] = 1

    def next(self):
        return self.count + self.step

class Book(Base):
    kind: Kind | None = None
    levels: dict[str, Level] = {}

    def next(self):
        return super().next()

    def onRow(self, row):
        self.count = self.next()
        self.kind = Kind.A
        self.levels["x"] = Level(Decimal("1.5"), [Pair(self.count, date(2024, 1, 1))])
        yield (Book.__name__, self.count, row.value * FACTOR)

with open(sys.argv[1], "wb") as file:
    cloudpickle.dump(Book, file)
"""


def run_python(source: str, *arguments: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(source), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_class_of_main_runs_in_another_process(tmp_path: Path) -> None:
    file = str(tmp_path / "operator.pickle")
    run_python(PROGRAM, file)
    lines = run_python(WORKER, file).splitlines()
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert lines[0].startswith("[('Book', 2, 20.0)] Book(count=2, kind=<Kind.A: 'a'>, levels=")


def test_a_class_of_a_function_runs_in_another_process(tmp_path: Path) -> None:
    factor = 3

    class Scaled(Operator):
        total: float = 0.0

        def onRow(self, row: Any) -> Iterator[Any]:
            self.total += row.value * factor
            yield (self.total,)

    file = tmp_path / "operator.pickle"
    file.write_bytes(cloudpickle.dumps(Scaled))
    lines = run_python(WORKER, str(file)).splitlines()
    assert lines == ["[(9.0,)] Scaled(total=9.0)"] * 2


def test_a_class_loaded_again_in_its_own_process_is_the_same_class() -> None:
    class Local(Operator):
        count: int = 0

        def onRow(self, row: Any) -> None:
            self.count += 1

    again = cloudpickle.loads(cloudpickle.dumps(Local))
    assert again is Local
    run = runtime(again)
    run.open(KEY, None)
    run.op.onRow(None)
    assert run.close() is not None
