"""Plain functions over dicts as operators: what fits behaves as before, the rest is named."""

from __future__ import annotations

import copy
import enum
import functools
import inspect
import itertools
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

import braided
from braided.errors import OperatorDefinitionError, OutputSchemaError, StateValueError
from braided.kinds.operator.runtime import OperatorRuntime
from braided.operator.definition import Operator, state_codec
from support.cases import cases
from support.managed_functions import FUNCTIONS, Level, Make

INPUT = Row("id", "kind", "value", "tags")


def as_plain(make: Make, rows: list[Any]) -> tuple[dict[Any, list[Any]], dict[str, Any]]:
    """Output by id, and the dicts at the end, of the function as it stands."""
    function = make()
    out: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        for given_out in function(row) or ():
            out[row.id].append(copy.deepcopy(given_out))
    held = inspect.getclosurevars(function).nonlocals
    return out, {name: dict(value) for name, value in held.items() if isinstance(value, dict)}


def as_operator(
    operator: type[Operator], batches: list[list[Any]]
) -> tuple[dict[Any, list[Any]], dict[str, Any], dict[Any, bytes | None]]:
    """The same from an operator: key by key within a batch, through its records."""
    key_of = operator._key  # type: ignore[attr-defined]
    out: dict[Any, list[Any]] = defaultdict(list)
    records: dict[Any, bytes | None] = {}
    for batch in batches:
        groups: dict[Any, list[Any]] = {}
        for number, row in enumerate(batch):
            groups.setdefault(tuple(row[name] for name in key_of), []).append((number, row))
        run = OperatorRuntime(operator, 0)
        given_out: list[Any] = []
        for key in sorted(groups, key=repr):
            run.open(Row(*key_of)(*key), records.get(key))
            for number, row in groups[key]:
                for item in run.op.onRow(row) or ():
                    given_out.append((number, row.id, copy.deepcopy(item)))
            records[key] = run.close()
        for _, who, item in sorted(given_out, key=lambda part: part[0]):
            out[who].append(item)
    dicts: dict[str, Any] = {field.name: {} for field in operator._fields}
    holder = operator()
    for record in records.values():
        if record is not None:
            state_codec(operator).load(holder, record)
            for name in dicts:
                assert not dicts[name].keys() & getattr(holder, name).keys()
                dicts[name].update(getattr(holder, name))
    return out, dicts, records


@cache
def operator_of(make: Make) -> type[Operator]:
    return braided.managed(make())


ROWS = st.lists(
    st.builds(INPUT, st.sampled_from("xyz"), st.sampled_from("abc"), st.integers(0, 20), st.none()),
    max_size=40,
)


@pytest.mark.parametrize("make", FUNCTIONS, ids=lambda make: make.__name__)
@settings(max_examples=cases(40))
@given(rows=ROWS, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_a_managed_function_does_what_the_plain_one_does(
    make: Make, rows: list[Any], cuts: list[int]
) -> None:
    ends = sorted({min(cut, len(rows)) for cut in cuts} | {0, len(rows)})
    batches = [rows[a:b] for a, b in itertools.pairwise(ends)]
    out, dicts = as_plain(make, rows)
    given_out, state, records = as_operator(operator_of(make), batches)
    assert given_out == out
    assert state == {name.strip("_"): entries for name, entries in dicts.items()}
    alive = {key if isinstance(key, tuple) else (key,) for part in dicts.values() for key in part}
    assert {key for key, record in records.items() if record is not None} == alive


# --- what is refused --------------------------------------------------------------------------

SHARED: list[int] = []
TOTALS: dict[str, int] = {}
BUSY: dict[str, int] = {}
NOISE = random.Random(1)
TICKS = itertools.count()
PUSH = SHARED.append
STARTED: dict[str, int] = {"x": 1}


class Box:
    items: ClassVar[list[int]] = []
    total = 0

    def put(self, item: int) -> None:
        self.items.append(item)


BOX = Box()


class Mutable(enum.Enum):
    A = [1]  # noqa: RUF012


class Shifty(enum.Enum):
    A = 1

    def shift(self) -> None:
        SHARED.append(1)


class Defaults(NamedTuple):
    items: list[int] = []  # noqa: RUF012


@dataclass
class Factory:
    items: list[int] = field(default_factory=lambda: SHARED)


FROZEN = (1, 2)


def peek() -> int:
    return len(TOTALS)


def bump() -> int:
    SHARED.append(1)
    return len(SHARED)


@functools.cache
def remembered(value: int) -> list[int]:
    return [value]


def refused_functions() -> Iterator[tuple[Any, str, str]]:
    """A function, the access that does not fit, and a word of why.

    The line that is meant ends with a comment `# here`.
    """
    last: dict[str, int] = {}
    seen: dict[str, int] = {}
    n = 0

    def iterates(row: Any) -> Iterator[Any]:
        last[row.id] = row.value
        for key in last:  # here
            yield key, 1

    yield iterates, "last", "over all keys"

    def comprehends(row: Any) -> Any:
        last[row.id] = row.value
        return [key for key in last]  # here

    yield comprehends, "last", "over all keys"

    def measures(row: Any) -> Iterator[Any]:
        last[row.id] = row.value
        yield len(last)  # here

    yield measures, "len(last)", "as a whole"

    def lists_values(row: Any) -> Iterator[Any]:
        last[row.id] = row.value
        yield sum(last.values())  # here

    yield lists_values, "last.values()", "not at one key"

    def clears(row: Any) -> None:
        last[row.id] = row.value
        last.clear()  # here

    yield clears, "last.clear()", "not at one key"

    def updates(row: Any) -> None:
        last[row.id] = row.value
        last.update({row.id: 1})  # here

    yield updates, "last.update({row.id: 1})", "not at one key"

    def two_keys(row: Any) -> None:
        last[row.id] = row.value
        seen[row.kind] = row.value  # here

    yield two_keys, "seen[row.kind]", "one key"

    def two_keys_of_one(row: Any) -> Iterator[Any]:
        last[row.id] = row.value
        yield last.get(row.kind)  # here

    yield two_keys_of_one, "last.get(row.kind)", "one key"

    def passes(row: Any) -> Iterator[Any]:
        last[row.id] = row.value
        yield from sorted(last, key=str)  # here

    yield passes, "sorted(last, key=str)", "as a whole"

    def gives_away(row: Any) -> Iterator[Any]:
        last[row.id] = row.value
        yield last  # here

    yield gives_away, "last", "as a whole"

    def second_name(row: Any) -> None:
        d = last  # here
        d[row.id] = row.value

    yield second_name, "last", "as a whole"

    def truth(row: Any) -> None:
        if not last:  # here
            last[row.id] = 1

    yield truth, "last", "as a whole"

    def bound_method(row: Any) -> None:
        last[row.id] = 1
        get = last.get  # here
        get("x")

    yield bound_method, "last.get", "not at one key"

    def rebinds(row: Any) -> None:
        nonlocal n  # here
        n += 1
        last[row.id] = n

    yield rebinds, "nonlocal n", "outside the function"

    def rebinds_global(row: Any) -> None:
        global TOTALS  # here
        TOTALS = {}
        last[row.id] = 1

    yield rebinds_global, "global TOTALS", "outside the function"

    def fills_list(row: Any) -> None:
        last[row.id] = 1
        SHARED.append(row.value)  # here

    yield fills_list, "SHARED.append(row.value)", "outside the function"

    def stores_item(row: Any) -> None:
        last[row.id] = 1
        SHARED[0] = row.value  # here

    yield stores_item, "SHARED[0]", "outside the function"

    def keeps_hold(row: Any) -> None:
        last[row.id] = 1
        mine = SHARED  # here
        mine.append(1)

    yield keeps_hold, "SHARED", "could be changed"

    def stores_attribute(row: Any) -> None:
        last[row.id] = 1
        BOX.total = row.value  # here

    yield stores_attribute, "BOX.total", "outside the function"

    def uses_object(row: Any) -> Iterator[Any]:
        last[row.id] = 1
        yield BOX.total  # here

    yield uses_object, "BOX", "memory"

    def class_with_memory(row: Any) -> None:
        last[row.id] = 1
        Box().put(row.value)  # here

    yield class_with_memory, "Box", "between all keys"

    def own_attribute(row: Any) -> None:
        last[row.id] = 1
        bump.calls = 1  # type: ignore[attr-defined]  # here

    yield own_attribute, "bump.calls", "outside the function"

    def default_list(row: Any, cache: Any = []) -> None:  # noqa: B006  # here
        cache.append(last.setdefault(row.id, 0))

    yield default_list, "[]", "all calls share"

    def constant_key(row: Any) -> None:
        last["all"] = row.value  # here

    yield constant_key, "last['all']", "not a field of the row"

    def computed_key(row: Any) -> None:
        last[row.id.lower()] = row.value  # here

    yield computed_key, "last[row.id.lower()]", "not a field of the row"

    def position_key(row: Any) -> None:
        last[row[0]] = row.value  # here

    yield position_key, "last[row[0]]", "not a field of the row"

    def method_key(row: Any) -> None:
        last[row.count] = row.value  # here

    yield method_key, "last[row.count]", "row['count']"

    def moving_key(row: Any) -> None:
        key = row.id
        last[key] = row.value  # here
        key = row.kind

    yield moving_key, "last[key]", "more than once"

    def loop_key(row: Any) -> None:
        for tag in row.tags:
            last[tag] = row.value  # here

    yield loop_key, "last[tag]", "not a field of the row"

    def shadowed_key(row: Any) -> Iterator[Any]:
        key = row.id
        yield [last[key] for key in row.tags]  # here
        last[key] = 1

    yield shadowed_key, "last[key]", "more than once"

    def other_row(row: Any) -> None:
        last[row.id] = 1
        row = Row(id="x")  # here

    yield other_row, "row", "is the row"

    def captured(row: Any) -> Iterator[Any]:
        last[row.id] = row.value
        yield sorted(row.tags, key=lambda tag: last[row.id] - tag)  # here

    yield captured, "last[row.id]", "function inside"

    def captured_by_def(row: Any) -> Iterator[Any]:
        def later() -> int:
            return last[row.id]  # here

        last[row.id] = row.value
        yield later()

    yield captured_by_def, "last[row.id]", "function inside"

    def evaluates(row: Any) -> None:
        last[row.id] = eval("1")  # here

    yield evaluates, "eval", "analysis does not see"

    def reaches_globals(row: Any) -> None:
        last[row.id] = len(globals())  # here

    yield reaches_globals, "globals", "analysis does not see"

    def reaches_machinery(row: Any) -> None:
        last[row.id] = 1
        bump.__globals__["SHARED"] = []  # here

    yield reaches_machinery, "bump.__globals__['SHARED']", "outside the function"

    def changes_row(row: Any) -> None:
        last[row.id] = 1
        row["value"] = 2  # here

    yield changes_row, "row['value']", "changes the row"

    def changes_row_attribute(row: Any) -> None:
        last[row.id] = 1
        del row.value  # here

    yield changes_row_attribute, "row.value", "changes the row"

    def helper_peeks(row: Any) -> Iterator[Any]:
        TOTALS[row.id] = 1
        yield peek()  # here

    yield helper_peeks, "peek", "touches the state dict TOTALS"

    def helper_remembers(row: Any) -> Iterator[Any]:
        last[row.id] = 1
        yield bump()  # here

    yield helper_remembers, "bump", "SHARED.append(1)"

    def itself(row: Any) -> Iterator[Any]:
        last[row.id] = 1
        yield from itself(row)  # here

    yield itself, "itself", "touches the state dict last"

    def cached_helper(row: Any) -> None:
        last[row.id] = 1
        remembered(1).append(2)  # here

    yield cached_helper, "remembered", "memory"

    def random_numbers(row: Any) -> None:
        last[row.id] = NOISE.randint(0, 3)  # here

    yield random_numbers, "NOISE", "memory"

    def module_random(row: Any) -> None:
        last[row.id] = random.randint(0, 3)  # here

    yield module_random, "random.randint", "between calls"

    def ticks(row: Any) -> None:
        last[row.id] = next(TICKS)  # here

    yield ticks, "TICKS", "memory"

    def pushes(row: Any) -> None:
        last[row.id] = 1
        PUSH(row.value)  # here

    yield pushes, "PUSH", "analysis does not see"

    def clock(row: Any) -> None:
        last[row.id] = datetime.now().year  # here

    yield clock, "datetime.now", "something else each time"

    def hashes(row: Any) -> None:
        last[row.id] = hash(row.kind)  # here

    yield hashes, "hash", "process to process"

    def same_object(row: Any) -> Iterator[Any]:
        yield last.get(row.id) is row.value  # here
        last[row.id] = row.value

    yield same_object, "last.get(row.id) is row.value", "use =="

    def same_constant(row: Any) -> Iterator[Any]:
        yield last.get(row.id) is FROZEN  # here
        last[row.id] = row.value

    yield same_constant, "last.get(row.id) is FROZEN", "use =="

    def enum_value(row: Any) -> None:
        last[row.id] = 1
        Mutable.A.value.append(1)  # here

    yield enum_value, "Mutable.A", "between all keys"

    def enum_method(row: Any) -> None:
        last[row.id] = 1
        Shifty.A.shift()  # here

    yield enum_method, "Shifty.A", "SHARED.append(1)"

    def shared_default(row: Any) -> None:
        last[row.id] = 1
        Defaults().items.append(1)  # here

    yield shared_default, "Defaults", "shared by all keys"

    def shared_factory(row: Any) -> None:
        last[row.id] = 1
        Factory().items.append(1)  # here

    yield shared_factory, "Factory", "shared by all keys"

    def imports(row: Any) -> None:
        import math  # here

        last[row.id] = math.floor(row.value)

    yield imports, "import math", "top of the module"

    def passes_module(row: Any) -> None:
        last[row.id] = 1
        print(random)  # here

    yield passes_module, "random", "module"

    def entries(row: Any) -> None:
        STARTED[row.id] = 1  # here

    yield entries, "STARTED[row.id]", "has entries already"

    def never_written(row: Any) -> Iterator[Any]:
        last[row.id] = 1
        yield BUSY.get(row.id)  # here

    yield never_written, "BUSY.get", "never written"

    def undefined(row: Any) -> None:
        last[row.id] = nowhere  # type: ignore[name-defined]  # noqa: F821  # here

    yield undefined, "nowhere", "not defined"

    def two_meanings(row: Any) -> Iterator[Any]:
        last[row.id] = 1
        yield [SHARED for SHARED in row.tags]  # here
        yield len(SHARED)

    yield two_meanings, "SHARED", "from outside"

    async def asynchronous(row: Any) -> None:  # here
        last[row.id] = 1

    yield asynchronous, "async", "plain function"

    def stateless(row: Any) -> Iterator[Any]:  # here
        yield row.id

    yield stateless, "no dict", "no state"

    def two_rows(row: Any, other: Any) -> None:  # here
        last[row.id] = other

    yield two_rows, "name(row)", "one parameter"


REFUSED = {function.__name__: (function, *rest) for function, *rest in refused_functions()}


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_with_other_memory_is_refused_by_line_and_access(name: str) -> None:
    function, access, why = REFUSED[name]
    lines, first = inspect.getsourcelines(function)
    (line,) = [first + i for i, text in enumerate(lines) if text.rstrip().endswith("# here")]
    with pytest.raises(OperatorDefinitionError) as raised:
        braided.managed(function)
    message = str(raised.value)
    assert message.startswith(f"{__file__}:{line}: {name}")
    assert access in message
    assert why in message


def test_what_is_no_plain_function_with_source_is_refused() -> None:
    @functools.wraps(peek)
    def wrapped(row: Any) -> None:
        TOTALS[row.id] = 1

    made: dict[str, Any] = {}
    exec("def made(row):\n    pass", made)
    for function, why in [
        (lambda row: None, "lambda"),
        (print, "builtin print, which has no source"),
        (BOX.put, "the method Box.put"),
        (Box, "the class Box"),
        (functools.partial(peek), "a partial"),
        (wrapped, "wrapped by a decorator"),
        (made["made"], "source can't be read"),
    ]:
        with pytest.raises(OperatorDefinitionError, match=why):
            braided.managed(function)


def test_a_file_that_changed_since_it_was_loaded_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "changed.py"
    file.write_text("d: dict[str, int] = {}\ndef f(row):\n    d[row.id] = 1\n")
    names: dict[str, Any] = {"__name__": "changed"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    assert braided.managed(names["f"]).__name__ == "f"
    file.write_text("d: dict[str, int] = {}\ndef f(row):\n    d[row.id] = 2; d.clear()\n")
    os.utime(file, (1, 1))
    with pytest.raises(OperatorDefinitionError, match="no longer has the code"):
        braided.managed(names["f"])


# --- types ------------------------------------------------------------------------------------


def test_types_come_from_annotations_of_module_function_or_parameter_or_are_given() -> None:
    @dataclass
    class Local:
        x: int = 0

    inner: dict[str, Local] = {}
    unknown = {}  # type: ignore[var-annotated]

    def outer(passed: dict[str, int]) -> Any:
        def function(row: Any) -> None:
            inner[row.id] = Local()
            passed[row.id] = 1
            BUSY[row.id] = 1
            unknown[row.id] = b"x"

        return function

    function = outer({})
    with pytest.raises(
        OperatorDefinitionError, match=r"unknown, whose type is not known; annotate"
    ):
        braided.managed(function)
    with pytest.raises(OperatorDefinitionError, match=r"say what it holds"):
        braided.managed(function, state={"unknown": dict})
    with pytest.raises(OperatorDefinitionError, match=r"which is no dict"):
        braided.managed(function, state={"unknown": list[int]})
    with pytest.raises(OperatorDefinitionError, match=r"no state dict 'nobody'"):
        braided.managed(function, state={"unknown": dict[str, int], "nobody": dict[str, int]})
    with pytest.raises(OperatorDefinitionError, match=r"Box is not a type Braided can store"):
        braided.managed(function, state={"unknown": dict[str, Box]})
    operator = braided.managed(function, state={"unknown": "dict[str, bytes]"})
    assert {field.name: field.type for field in operator._fields} == {
        "inner": dict[str, Local],
        "passed": dict[str, int],
        "BUSY": dict[str, int],
        "unknown": dict[str, bytes],
    }


def test_a_value_that_does_not_fit_its_type_is_named() -> None:
    last: dict[str, int] = {}

    def keep(row: Any) -> None:
        last[row.id] = row.value

    run = OperatorRuntime(braided.managed(keep), 0)
    run.open(Row(id="a"), None)
    run.op.onRow(Row(id="a", value="text"))
    with pytest.raises(StateValueError, match=r"keep.last\['a'\] holds 'text'"):
        run.close()


def test_names_that_a_state_field_can_not_have_are_changed() -> None:
    _last: dict[str, int] = {}
    key: dict[str, int] = {}
    onRow: dict[str, int] = {}

    def keep(row: Any) -> None:
        _last[row.id] = key[row.id] = onRow[row.id] = row.value

    operator = braided.managed(keep)
    assert [field.name for field in operator._fields] == ["last", "key_", "onRow_"]
    assert [name for name, _ in as_operator(operator, [[Row(id="a", value=1)]])[1].items()]


def test_the_default_of_a_defaultdict_must_not_depend_on_anything() -> None:
    good: defaultdict[str, list[int]] = defaultdict(lambda: [0, int("1")])
    made: defaultdict[str, Level] = defaultdict(Level)
    bad: defaultdict[str, int] = defaultdict(TICKS.__next__)

    def counts(row: Any) -> None:
        good[row.id].append(1)
        made[row.id].take(4)

    def ticks(row: Any) -> None:
        bad[row.id] += 1

    assert as_operator(braided.managed(counts), [[Row(id="a")]])[1] == {
        "good": {"a": [0, 1, 1]},
        "made": {"a": Level(4, [4])},
    }
    with pytest.raises(OperatorDefinitionError, match="bad is a defaultdict whose default"):
        braided.managed(ticks)


def test_two_names_of_one_dict_and_two_functions_over_one_dict_are_refused() -> None:
    one: dict[str, int] = {}
    other = one

    def both(row: Any) -> None:
        one[row.id] = 1
        other[row.id] = 2

    def first(row: Any) -> None:
        one[row.id] = 1

    def second(row: Any) -> None:
        one[row.id] = 2

    with pytest.raises(OperatorDefinitionError, match="other and one are one dict"):
        braided.managed(both)
    braided.managed(first)
    braided.managed(first)
    with pytest.raises(OperatorDefinitionError, match=r"as does .*first, which is managed already"):
        braided.managed(second)


# --- what would differ after a batch ----------------------------------------------------------


def test_one_object_in_two_places_of_the_state_fails_the_row() -> None:
    one: dict[str, list[int]] = {}
    two: dict[str, list[int]] = {}
    deep: dict[str, list[list[int]]] = {}

    def share(row: Any) -> None:
        one[row.id] = two[row.id] = []

    def share_inside(row: Any) -> None:
        mine: list[int] = []
        deep[row.id] = [mine, mine]

    for function, where in [(share, "one and two"), (share_inside, "deep")]:
        run = OperatorRuntime(braided.managed(function), 0)
        run.open(Row(id="a"), None)
        with pytest.raises(StateValueError, match=rf"in two places of its state \({where}\)"):
            run.op.onRow(Row(id="a"))


def test_the_dicts_of_the_plain_function_stay_as_they_are() -> None:
    last: dict[str, int] = {}

    def keep(row: Any) -> Iterator[Any]:
        yield last.get(row.id)
        last[row.id] = row.value

    operator = braided.managed(keep)
    list(keep(Row(id="a", value=1)))
    out, state, _ = as_operator(operator, [[Row(id="a", value=2)], [Row(id="b", value=3)]])
    assert out == {"a": [None], "b": [None]}
    assert state == {"last": {"a": 2, "b": 3}}
    assert last == {"a": 1}


def test_instances_keep_their_own_entries_in_turn() -> None:
    last: dict[str, int] = {}
    sums: defaultdict[str, int] = defaultdict(int)

    def keep(row: Any) -> Iterator[Any]:
        sums[row.id] += row.value
        yield last.get(row.id), sums[row.id]
        last[row.id] = row.value

    operator: Any = braided.managed(keep)
    one, other = operator(), operator()
    assert list(one.onRow(Row(id="a", value=1))) == [(None, 1)]
    assert list(other.onRow(Row(id="b", value=2))) == [(None, 2)]
    assert list(one.onRow(Row(id="a", value=3))) == [(1, 4)]
    assert (one.last, one.sums, other.last, other.sums) == ({"a": 3}, {"a": 4}, {"b": 2}, {"b": 2})


def test_a_function_that_returns_one_row_is_told_to_return_a_list() -> None:
    last: dict[str, int] = {}

    def keep(row: Any) -> Any:
        last[row.id] = 1
        return {"id": row.id}

    run = OperatorRuntime(braided.managed(keep), 0)
    run.open(Row(id="a"), None)
    with pytest.raises(OutputSchemaError, match="return a list of rows"):
        run.rows_of(run.op.onRow(Row(id="a")), "onRow")


# --- they travel to workers -------------------------------------------------------------------

WORKER = """
import pickle, sys
from pyspark.sql import Row
from braided.kinds.operator.runtime import OperatorRuntime

with open(sys.argv[1], "rb") as file:
    operator = pickle.load(file)
run = OperatorRuntime(operator, 0)
raw = None
for value in (1, 20):
    run.open(Row(id="a"), raw)
    out = list(run.op.onRow(Row(id="a", value=value)))
    raw = run.close()
run.open(Row(id="a"), raw)
print(out, run.op)
"""

PROGRAM = """
import sys
from collections import defaultdict
from pyspark import cloudpickle
import braided

FACTOR = 10
last: dict[str, int] = {}

def far(one, other):
    return abs(one - other) > FACTOR

def main():
    seen: defaultdict[str, int] = defaultdict(lambda: 100)

    @braided.managed
    def alert(row):
        if row.id in last and far(row.value, last[row.id]):
            yield row.id, row.value * FACTOR
        last[row.id] = row.value
        seen[row.id] += 1

    return alert

with open(sys.argv[1], "wb") as file:
    cloudpickle.dump(main(), file)
"""


def run_python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_managed_function_of_main_runs_in_another_process(tmp_path: Path) -> None:
    program, file = tmp_path / "program.py", tmp_path / "operator.pickle"
    program.write_text(PROGRAM)
    run_python(str(program), str(file))
    program.unlink()  # a worker has no source
    shown = run_python("-c", WORKER, str(file)).strip()
    assert shown == "[('a', 200)] alert(last={'a': 20}, seen={'a': 102})"
