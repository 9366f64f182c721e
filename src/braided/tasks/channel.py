"""What all kinds of tasks have in common: a channel's slots, its measurements, its report.

A task is a pure function of its slots' state at the version before and its rows. At the end it
writes one changelog and reports; nothing it writes counts until the manifest names it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, Self

import pyarrow as pa

from braided import failpoints
from braided.spark.worker_process import local_directory
from braided.store.durable.store import Store
from braided.store.history.manifest import CarryFile, OperatorVersion
from braided.store.slots.cache_port import SlotCache
from braided.store.slots.channel_state import ChannelState, Traits
from braided.store.slots.guests import GuestSlots
from braided.store.slots.host_cache import open_host_cache
from braided.store.slots.slot import SlotState
from braided.tasks.emitter import Emitter
from braided.tasks.reports import ChannelReport, KeyRows, SlotReport
from braided.tasks.shipped_moves import ChannelMoves
from braided.tasks.slot_meter import SlotMeter
from braided.tasks.spec import BatchSpec, ChannelSpec
from braided.tasks.state_location import CacheSetting
from braided.tasks.task_line import TaskLine, open_line

__all__ = ["Channel", "ChannelSlots", "cache_of_host"]


class ChannelSlots(Protocol):
    """The slots of a channel as its task reads and changes them."""

    def open_slots(self, slots: Iterable[int]) -> None: ...

    def slot(self, number: int) -> SlotState: ...

    def close(self) -> None: ...


class Channel:
    """One channel of an operator in one batch. It knows nothing of Spark: Arrow in, Arrow out."""

    def __init__(
        self,
        spec: ChannelSpec,
        name: str,
        batch: BatchSpec,
        number: int,
        state: ChannelSlots,
        line: TaskLine | None = None,
    ) -> None:
        self.spec = spec
        self.name = name
        self.batch = batch
        self.number = number
        self.state = state
        self.line = open_line(None, batch, name, number) if line is None else line
        self.files = spec.store
        self._view = OperatorVersion.empty(spec.meta)
        self._guests: GuestSlots | None = None
        self.attempt = f"{batch.batch}-{number}-{uuid.uuid4().hex[:12]}"
        self.meter = SlotMeter()
        self.rows_in = 0
        self.bytes_in = 0
        self.rows_late = 0

    @classmethod
    def open(cls, spec: ChannelSpec, name: str, batch: BatchSpec, number: int) -> Self:
        """With the slots at the version before.

        Where rows of operators before it may have been left for the next batch, the watermark does
        not move for it: what they lead to is still to come.
        """
        line = open_line(spec.line, batch, name, number)
        batch = batch.of_operator(name, line.holds_watermark)
        store, view = spec.store, OperatorVersion.empty(spec.meta)
        if name in batch.chains:
            shipped = batch.chains[name]
            view = view.with_chains(shipped.chains(store, number, spec.meta.slots))
        else:
            view = view.starting_with(batch.initial.get(name, ()))
        cache = cache_of_host(spec.cache, spec.flow, store)
        state = ChannelState(store, cache, name, view, spec.limits)
        opened = cls(spec, name, batch, number, state, line)
        opened._view = view
        return opened

    def moves(self) -> ChannelMoves | None:
        """The keys that come to this channel's slots and leave them; None if none does."""
        shipped = self.batch.moves.get(self.name)
        return None if shipped is None else shipped.of(self.spec.store, self.number)

    def guests(self) -> GuestSlots:
        """The slots of other channels, at the version before."""
        if self._guests is None:
            spec, view = self.spec, self._view
            chains = self.batch.moves[self.name].guest_chains(spec.store, spec.meta.slots)
            if chains is not None:
                view = OperatorVersion.empty(spec.meta).with_chains(chains)
            cache = cache_of_host(spec.cache, spec.flow, spec.store)
            self._guests = GuestSlots(spec.store, cache, view)
        return self._guests

    def chunks_with_rows(self, chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The chunks that have rows, which are counted; to wait for one is no work."""
        for chunk in self.meter.timed(chunks):
            if chunk.num_rows:
                self.rows_in += chunk.num_rows
                self.bytes_in += chunk.nbytes
                failpoints.reach("task-rows")
                yield chunk

    def enter(self, number: int) -> SlotState:
        """The slot that the task works for from now on."""
        self.meter.enter(number)
        return self.state.slot(number)

    def touched_slots(self) -> list[int]:
        """Those that the task has touched, and those the driver says have something due."""
        due = self.batch.due.get(self.name, {}).get(self.number, ())
        slots = sorted({*self.meter.rows, *due})
        self.state.open_slots(slots)
        return slots

    def close(self) -> None:
        """Lets go of the slots. `report` does; a task that does not get there must.

        What they hold of the cache would keep its pages from being used again.
        """
        self.state.close()

    def report(
        self,
        emitter: Emitter,
        keys_touched: int,
        carry: Callable[[], CarryFile | None] = lambda: None,
        heavy: tuple[KeyRows, ...] = (),
        traits: Traits | None = None,
    ) -> ChannelReport:
        """Writes what changed, durably, and says so.

        `carry` writes what is left for the next batch, after the state. `traits` tells what of the
        changes another attempt has in common, if that is not all.
        """
        assert isinstance(self.state, ChannelState), "slots in memory are never reported"
        self.line.ended(self.rows_in)
        meter = self.meter
        meter.leave()
        begun_ns = meter.worked_ns()
        changes = self.state.finish(f"state/{self.name}/{self.attempt}", traits)
        carried = carry()
        commit_ns = meter.worked_ns() - begun_ns
        changed = [(slot.slot, meter.rows.get(slot.slot, 0)) for slot in changes.slots]
        meter.charge(changed, commit_ns)
        lent_bytes, lent_ns = 0, 0
        if self._guests is not None:
            lent_bytes, lent_ns = self._guests.bytes_caught_up, self._guests.waited_ns
        slots = tuple(
            SlotReport(
                slot=slot.slot,
                rows=meter.rows.get(slot.slot, 0),
                busy_ns=meter.busy_ns.get(slot.slot, 0),
                keys=slot.keys,
                bytes=slot.bytes,
                keys_added=slot.keys_added,
                bytes_added=slot.bytes_added,
                due_ms=slot.due_ms,
            )
            for slot in changes.slots
        )
        return ChannelReport(
            operator=self.name,
            channel=self.number,
            attempt=self.attempt,
            log=changes.log,
            snap=changes.snap,
            carry=carried,
            slots=slots,
            keys_added=sum(slot.keys_added for slot in slots),
            bytes_added=sum(slot.bytes_added for slot in slots),
            has_timers=any(slot.due_ms is not None for slot in slots),
            rows_in=self.rows_in,
            rows_out=emitter.rows_out,
            keys_touched=keys_touched,
            busy_ns=meter.worked_ns(),
            output_digest=emitter.digest(),
            slots_opened=changes.opened,
            cache_hits=changes.hits,
            rolled_back=changes.rolled_back,
            caught_up=changes.caught_up,
            rebuilt=changes.rebuilt,
            bytes_caught_up=changes.bytes_caught_up + lent_bytes,
            cache_errors=changes.cache_errors,
            heavy=heavy,
            traits=changes.traits,
            bytes_in=self.bytes_in,
            waited_ns=changes.waited_ns + lent_ns,
            holds_watermark=self.line.holds_watermark,
            cpu_ns=meter.cpu_ns(),
            pairs=() if emitter.pairs is None else emitter.pairs.reports(),
            rows_updated=changes.rows_updated,
            rows_removed=changes.rows_removed,
            rows_late=self.rows_late,
            commit_ns=commit_ns,
        )


def cache_of_host(setting: CacheSetting | None, flow: str, store: Store) -> SlotCache | None:
    """The cache of the host that the task runs on."""
    if setting is None:
        return None
    base = Path(setting.directory or local_directory(flow))
    return open_host_cache(base, flow, store.location.text, setting.max_bytes)
