"""Value, list and map state and timers of keys against plain Python values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braided.errors import StateValueError
from braided.store.slots.cache_port import EMPTY, MemoryImage
from braided.store.slots.catch_up import Opened
from braided.store.slots.layout import timer_parts
from braided.store.slots.slot import SlotState
from braided.store.variables.expiry import sweep
from braided.store.variables.open_key import OpenKey
from braided.store.variables.variables import (
    INLINE_BYTES_MAX,
    Codec,
    ListVariable,
    MapVariable,
    ValueVariable,
)
from support.cases import cases

PLAIN = Codec(msgspec.msgpack.encode, lambda data: tuple(msgspec.msgpack.decode(data)))
KEYS = [msgspec.msgpack.encode((name,)) for name in ("a", "b", "x" * 300, "y" * 700)]
TTL_MS = 10


class Store:
    """A slot that goes from batch to batch, as committed."""

    def __init__(self) -> None:
        self.content: dict[bytes, bytes] = {}

    def slot(self) -> SlotState:
        def closed() -> Opened:
            raise AssertionError

        image = MemoryImage({bytes(4) + place: value for place, value in self.content.items()})
        return SlotState(bytes(4), Opened(EMPTY, image), closed)

    def commit(self, slot: SlotState) -> None:
        changes = slot.changes()
        if changes is None:
            return
        for place, value in zip(changes.suffixes, changes.values, strict=True):
            if value is None:
                self.content.pop(place, None)
            else:
                self.content[place] = value


class Task:
    """The variables of a batch."""

    def __init__(self, store: Store, now_ms: int, ttl_ms: int | None) -> None:
        self.store, self.now_ms = store, now_ms
        self.slot = store.slot()
        self.key = OpenKey(now_ms)
        self.value = ValueVariable(self.key, 0, PLAIN, ttl_ms)
        self.list = ListVariable(self.key, 1, PLAIN, ttl_ms)
        self.map = MapVariable(self.key, 2, PLAIN, PLAIN, ttl_ms)

    def commit(self) -> None:
        sweep(self.slot, self.key, self.now_ms)
        self.store.commit(self.slot)


class Model:
    """What a key has, in plain Python: every value with when it expires."""

    def __init__(self) -> None:
        self.value: tuple[int, Any] | None = None
        self.list: list[tuple[int, Any]] = []
        self.map: dict[Any, tuple[int, Any]] = {}
        self.timers: set[int] = set()

    def expire(self, now_ms: int) -> None:
        if self.value is not None and self.value[0] <= now_ms:
            self.value = None
        self.list = [item for item in self.list if item[0] > now_ms]
        self.map = {key: item for key, item in self.map.items() if item[0] > now_ms}

    @property
    def is_empty(self) -> bool:
        return self.value is None and not self.list and not self.map and not self.timers


items = st.one_of(
    st.tuples(st.integers(0, 5)),
    st.tuples(st.text(max_size=3)),
    st.just(("z" * (INLINE_BYTES_MAX + 1),)),
    st.just((None,)),
)
names = st.one_of(st.tuples(st.integers(0, 3)), st.just(("m" * 250,)), st.just(("m" * 249 + "n",)))
operations = st.one_of(
    st.tuples(st.just("update"), items),
    st.tuples(st.just("clear value")),
    st.tuples(st.just("append"), items),
    st.tuples(st.just("append list"), st.lists(items, min_size=1, max_size=3)),
    st.tuples(st.just("put"), st.lists(items, min_size=1, max_size=3)),
    st.tuples(st.just("clear list")),
    st.tuples(st.just("set"), names, items),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("clear map")),
    st.tuples(st.just("timer"), st.integers(0, 5)),
    st.tuples(st.just("no timer"), st.integers(0, 5)),
    st.tuples(st.just("look")),
)
visits = st.tuples(st.integers(0, len(KEYS) - 1), st.lists(operations, max_size=6))
batches = st.lists(st.tuples(st.integers(0, 8), st.lists(visits, max_size=5)), max_size=6)


def _apply(task: Task, model: Model, operation: tuple[Any, ...], expiry: int) -> None:
    name, *given = operation
    key = task.key
    does: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "update": (task.value.update, lambda v: setattr(model, "value", (expiry, v))),
        "clear value": (task.value.clear, lambda: setattr(model, "value", None)),
        "append": (task.list.appendValue, lambda v: model.list.append((expiry, v))),
        "append list": (
            task.list.appendList,
            lambda vs: model.list.extend((expiry, v) for v in vs),
        ),
        "put": (task.list.put, lambda vs: setattr(model, "list", [(expiry, v) for v in vs])),
        "clear list": (task.list.clear, lambda: setattr(model, "list", [])),
        "set": (task.map.updateValue, lambda k, v: model.map.__setitem__(k, (expiry, v))),
        "remove": (task.map.removeKey, lambda k: model.map.pop(k, None)),
        "clear map": (task.map.clear, lambda: model.map.clear()),
        "timer": (key.timers.add, model.timers.add),
        "no timer": (key.timers.discard, model.timers.discard),
        "look": (lambda: None, lambda: None),
    }
    ours, theirs = does[name]
    ours(*given)
    theirs(*given)
    if "timer" in name:
        key.dirty = True


def _compare(task: Task, model: Model) -> None:
    assert task.value.get() == (model.value and model.value[1])
    assert task.value.exists() is (model.value is not None)
    assert list(task.list.get()) == [value for _, value in model.list]
    assert task.list.exists() is bool(model.list)
    entries = {key: value for key, (_, value) in model.map.items()}
    assert dict(task.map.iterator()) == entries
    assert sorted(task.map.keys(), key=str) == sorted(entries, key=str)
    assert sorted(task.map.values(), key=str) == sorted(entries.values(), key=str)
    assert task.map.exists() is bool(entries)
    for name in [(0,), (3,), ("m" * 250,)]:
        assert task.map.getValue(name) == entries.get(name)
        assert task.map.containsKey(name) is (name in entries)
    assert task.key.timers == model.timers


@settings(max_examples=cases(300), deadline=None)
@given(batches, st.sampled_from([None, TTL_MS]))
def test_any_sequence_of_operations_does_what_plain_values_do(
    plan: list[tuple[int, list[tuple[int, list[tuple[Any, ...]]]]]], ttl_ms: int | None
) -> None:
    store, models, now_ms = Store(), [Model() for _ in KEYS], 0
    for later, keys in plan:
        now_ms += later
        task = Task(store, now_ms, ttl_ms)
        for model in models:
            model.expire(now_ms)
        for number, given_operations in keys:
            task.key.open(task.slot, KEYS[number])
            for operation in given_operations:
                _apply(task, models[number], operation, now_ms + ttl_ms if ttl_ms else 1 << 60)
                _compare(task, models[number])
            task.key.close()
        for number, model in enumerate(models):
            task.key.open(task.slot, KEYS[number])
            _compare(task, model)
            task.key.close()
        task.commit()
        _check_stored(store, models, ttl_ms)


def _check_stored(store: Store, models: list[Model], ttl_ms: int | None) -> None:
    records = [place for place in store.content if place[:1] in b"kK"]
    assert len(records) == sum(not model.is_empty for model in models)
    timers = sorted(timer_parts(p, v) for p, v in store.content.items() if p[:1] == b"t")
    wanted = [(ms, key) for key, m in zip(KEYS, models, strict=True) for ms in m.timers]
    assert timers == sorted(wanted)
    entries = [place for place in store.content if place[:1] == b"m"]
    assert len(entries) == sum(len(model.map) for model in models)
    if ttl_ms is None:
        assert not any(place[:1] == b"x" for place in store.content)


def test_all_that_expired_is_gone_after_a_while_and_so_are_its_notes() -> None:
    store = Store()
    for now_ms in (0, 5, 9):
        task = Task(store, now_ms, TTL_MS)
        task.key.open(task.slot, KEYS[0])
        task.value.update((1,))
        task.list.appendValue((2,))
        task.map.updateValue((now_ms,), (3,))
        task.map.updateValue(("always",), (3,))
        task.key.close()
        task.commit()
    assert any(place[:1] == b"x" for place in store.content)
    for now_ms in (12, 16, 30):
        Task(store, now_ms, TTL_MS).commit()
    assert store.content == {}


def test_one_entry_of_a_large_map_costs_one_entry() -> None:
    store = Store()
    task = Task(store, 0, None)
    task.key.open(task.slot, KEYS[0])
    for number in range(2000):
        task.map.updateValue((number,), (number,))
    task.key.close()
    task.commit()
    task = Task(store, 1, None)
    task.key.open(task.slot, KEYS[0])
    assert task.map.getValue((77,)) == (77,)
    task.map.updateValue((77,), (78,))
    task.key.close()
    changes = task.slot.changes()
    assert changes is not None and len(changes.suffixes) == 1


def test_an_append_does_not_write_the_list_again() -> None:
    store = Store()
    for batch in range(3):
        task = Task(store, batch, None)
        task.key.open(task.slot, KEYS[0])
        task.list.appendList([(n,) for n in range(500)])
        task.key.close()
        changes = task.slot.changes()
        assert changes is not None and len(changes.suffixes) == 2  # a piece, and the record
        task.commit()
    assert len([place for place in store.content if place[:1] == b"l"]) == 3


def test_state_without_a_key_is_refused_in_words() -> None:
    task = Task(Store(), 0, None)
    for use in (task.value.get, task.list.get, task.map.exists, task.value.clear):
        with pytest.raises(StateValueError, match="no key was at hand"):
            use()
    with pytest.raises(StateValueError, match="no key was at hand"):
        task.list.appendValue((1,))


def test_a_variable_that_was_deleted_leaves_nothing() -> None:
    store = Store()
    task = Task(store, 0, None)
    task.key.open(task.slot, KEYS[0])
    task.value.update(("z" * 1000,))
    task.list.appendValue((1,))
    task.map.updateValue((1,), (1,))
    task.key.close()
    task.commit()
    slot, key = store.slot(), OpenKey(0, frozenset([0, 1, 2]))
    key.open(slot, KEYS[0])
    key.close()
    store.commit(slot)
    assert store.content == {}


@pytest.mark.parametrize("size", [3, 64, 65, 120])
@pytest.mark.parametrize("ttl_ms", [None, TTL_MS])
def test_a_map_is_read_in_order_as_it_is_at_the_call(size: int, ttl_ms: int | None) -> None:
    store = Store()
    task = Task(store, 0, ttl_ms)
    task.key.open(task.slot, KEYS[0])
    for number in range(size):
        task.map.updateValue((number,), (number,))
    assert list(task.map.keys()) == [(number,) for number in range(size)]
    task.key.close()
    task.commit()
    task = Task(store, 1, ttl_ms)
    task.key.open(task.slot, KEYS[0])
    task.map.removeKey((0,))
    task.map.updateValue((1,), (-1,))
    task.map.updateValue(("new",), (0,))
    entries = task.map.iterator()
    task.map.updateValue((2,), (-2,))
    task.map.removeKey(("new",))
    expected = [((1,), (-1,)), *(((n,), (n,)) for n in range(2, size)), (("new",), (0,))]
    assert list(entries) == expected
