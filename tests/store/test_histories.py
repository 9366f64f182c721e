"""Random histories of batches on two hosts, compared with a dictionary after every step."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from braided.store.history import manifest_log as manifests_module
from braided.store.slots import catch_up as opening
from braided.store.slots import lmdb_cache as cache_module
from braided.store.slots.cache_port import MemoryCache, SlotCache, Tag
from braided.store.slots.channel_state import ChannelState, SnapshotLimits
from braided.store.slots.lmdb_cache import Cache
from support.cases import cases
from support.small_flow import OPERATOR, SmallFlow, applied, timer, write

SLOTS = 4
HOSTS = st.sampled_from([0, 1])
SUFFIXES = st.sampled_from(
    [b"ka", b"kb", b"kc", b"K" + bytes(32), timer(5, b"a"), timer(-7, b"b"), timer(9, b"")]
)
LOST = st.sampled_from(["everything", "an environment", "a slot"])
VALUES = st.sampled_from([None, b"", b"1", b"2", b"x" * 40])
WRITES = st.dictionaries(
    st.integers(0, SLOTS - 1), st.dictionaries(SUFFIXES, VALUES, max_size=4), max_size=SLOTS
)


class Histories(RuleBasedStateMachine):
    """Tasks run on either host, commit or not, and come late; caches vanish and fall behind."""

    def cache(self, host: int) -> SlotCache:
        raise NotImplementedError

    @initialize(
        runs=st.integers(1, 4), factor=st.sampled_from([0.1, 1.0, 9.0]), full=st.integers(1, 5)
    )
    def start(self, runs: int, factor: float, full: int) -> None:
        shm = Path("/dev/shm")
        self.root = Path(tempfile.mkdtemp(dir=shm if shm.is_dir() else None))
        limits = SnapshotLimits(
            snapshot_min_bytes=8, snapshot_factor=factor, snapshots_per_task=2, snapshot_runs=runs
        )
        self.flow = SmallFlow(self.root / "checkpoint", SLOTS, limits, full_every=full)
        self.model: dict[int, dict[bytes, bytes]] = {}
        self.zombies: list[ChannelState] = []
        self.memories = [MemoryCache(), MemoryCache()]

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    def attempts(self, writes, cut: int, hosts) -> list:
        """The batch's slots below `cut` on one channel and host, the others on another."""
        parts = [
            {slot: changes for slot, changes in writes.items() if (slot < cut) is below}
            for below in (True, False)
        ]
        done = []
        for channel, (part, host) in enumerate(zip(parts, hosts, strict=True)):
            state = self.flow.open(self.cache(host))
            for slot, changes in part.items():
                held = self.model.get(slot, {})
                for suffix in changes:
                    assert state.slot(slot).get(suffix) == held.get(suffix)
                write(state, slot, changes)
                after = applied({slot: held}, {slot: changes}).get(slot, {})
                assert dict(state.slot(slot).scan(b"")) == after
                for suffix in changes:
                    assert state.slot(slot).get(suffix) == after.get(suffix)
            done.append(self.flow.finish(state, channel))
        return done

    @rule(writes=WRITES, cut=st.integers(0, SLOTS), hosts=st.tuples(HOSTS, HOSTS))
    def batch(self, writes, cut: int, hosts) -> None:
        done = self.attempts(writes, cut, hosts)
        self.model = applied(self.model, writes)
        for change in (slot for part in done for slot in part.slots):
            items = self.model.get(change.slot, {})
            assert change.keys == sum(suffix[:1] in b"kK" for suffix in items)
            assert change.bytes == sum(len(s) + len(v) for s, v in items.items())
            timers = sorted(int.from_bytes(s[1:9], "big") - (1 << 63) for s in items if s[0] == 116)
            assert change.due_ms == (timers[0] if timers else None)
        self.flow.commit(done)

    @rule(writes=WRITES, cut=st.integers(0, SLOTS), hosts=st.tuples(HOSTS, HOSTS))
    def abandoned_batch(self, writes, cut: int, hosts) -> None:
        self.attempts(writes, cut, hosts)

    @rule(writes=WRITES, host=HOSTS)
    def zombie_starts(self, writes, host: int) -> None:
        state = self.flow.open(self.cache(host))
        state.open_slots(writes)
        for slot, changes in writes.items():
            write(state, slot, changes)
        self.zombies.append(state)

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def zombie_finishes(self, data) -> None:
        index = data.draw(st.integers(0, len(self.zombies) - 1))
        self.zombies.pop(index).finish(f"state/{OPERATOR}/0-9-zombie{len(self.zombies)}")

    @rule(host=HOSTS, what=LOST)
    def cache_is_lost(self, host: int, what: str) -> None:
        raise NotImplementedError

    @rule()
    def process_restarts(self) -> None:
        manifests_module._remembered.clear()
        self.zombies.clear()

    def tags(self, cache: SlotCache | None) -> list[Tag]:
        """A slot has the same tag by whichever way it came to its version."""
        state = self.flow.open(cache)
        return [state.slot(slot).tag for slot in range(SLOTS)]

    @rule(host=st.sampled_from([0, 1, None]))
    def read(self, host: int | None) -> None:
        cache = None if host is None else self.cache(host)
        assert self.flow.contents(cache) == self.model
        assert self.tags(cache) == self.tags(None)
        view = self.flow.view()
        items = [(s, v) for slot in self.model.values() for s, v in slot.items()]
        assert view.keys == sum(suffix[:1] in b"kK" for suffix, _ in items)
        assert view.bytes == sum(len(s) + len(v) for s, v in items)


class MemoryHistories(Histories):
    def cache(self, host: int) -> SlotCache:
        return self.memories[host]

    @rule(host=HOSTS, what=LOST)
    def cache_is_lost(self, host: int, what: str) -> None:
        if what == "everything":
            self.memories[host].clear()
        else:
            self.memories[host].discard(bytes(4))


class LmdbHistories(Histories):
    def cache(self, host: int) -> SlotCache:
        return Cache(self.root / f"host{host}", map_size=1 << 28)

    @rule(host=HOSTS, what=LOST)
    def cache_is_lost(self, host: int, what: str) -> None:
        cache = Cache(self.root / f"host{host}", map_size=1 << 28)
        if what == "everything":
            shutil.rmtree(self.root / f"host{host}", ignore_errors=True)
        elif what == "an environment":
            cache.drop(1)
        else:
            environment = cache._open(2)
            with environment.lmdb.begin(write=True) as transaction:
                cache_module._evict(environment, transaction, 0)

    @rule()
    def process_restarts(self) -> None:
        super().process_restarts()
        # What was open ends with its process, and not when garbage is collected: LMDB opens nothing
        # twice in one, and the cache would be thrown away.
        for key, handle in list(cache_module._handles.items()):
            if handle.path.is_relative_to(self.root):
                handle.lmdb.close()
                del cache_module._handles[key]


QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

# Half of the cases each: the two draw the same histories for the two caches.
MemoryHistories.TestCase.settings = settings(
    max_examples=cases(60), stateful_step_count=30, deadline=None, suppress_health_check=QUIET
)
LmdbHistories.TestCase.settings = settings(
    max_examples=cases(50), stateful_step_count=30, deadline=None, suppress_health_check=QUIET
)


@pytest.fixture(autouse=True)
def pass_on_after_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Histories are small; without this no rebuild would ever be passed on in parts.
    monkeypatch.setattr(opening, "_HELD_BYTES", 30)


class TestMemoryHistories(MemoryHistories.TestCase):  # type: ignore[misc]
    pass


class TestLmdbHistories(LmdbHistories.TestCase):  # type: ignore[misc]
    pass
