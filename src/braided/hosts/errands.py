"""Small jobs on chosen hosts, beside the running batch: starting workers, fetching slots.

They run one after the other, and ring the bell when something has come of it: the batch that begins
next sees it. Whatever fails is logged, and costs a batch some waiting.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from braided.control.routing.host_choice import Residence
from braided.control.routing.key_moves import KeyMoves
from braided.control.routing.table import RoutingTable
from braided.hosts.probe import Found, find
from braided.spark.executors import Executor, site_of
from braided.spark.placed_frames import PlacedFrames
from braided.store.history.manifest import OperatorVersion, View
from braided.store.history.shipped_chains import pack_slots
from braided.tasks.prefetch import Fetched, HostErrand, SlotShare, run_errands
from braided.tasks.state_location import StateLocation

__all__ = ["Errands", "HostSlots", "guests_to_fetch", "slots_to_fetch"]

HostSlots = Mapping[str, Mapping[str, tuple[int, ...]]]
"""Slots by host and operator."""

log = logging.getLogger("braided")

_WARM_ROUNDS = 2


class Errands:
    """Runs jobs on hosts for one query."""

    def __init__(
        self,
        spark: SparkSession,
        placed: PlacedFrames,
        location: StateLocation,
        modules: Sequence[str],
        ring: Callable[[], None],
    ) -> None:
        self._spark = spark
        self._placed = placed
        self._location = location
        self._modules = modules
        """What a task imports."""
        self._ring = ring
        self._tag = f"braided-errands-{uuid.uuid4().hex[:12]}"
        self._closed = threading.Event()
        self._turn = threading.Lock()

    def start(self, job: Callable[[], object], rings: bool = True) -> threading.Event:
        """Has a job run in a thread, and the bell rung after it; what is set when it is done."""
        done = threading.Event()

        def run() -> None:
            try:
                with self._turn:
                    if not self._closed.is_set():
                        job()
            except Exception as error:
                if self._closed.is_set():
                    return
                log.warning(
                    "hosts were not prepared, batches wait for what they lack: %s",
                    str(error).split("\n", 1)[0],
                )
                log.debug("an errand failed", exc_info=True)
            finally:
                done.set()
                if rings and not self._closed.is_set():
                    self._ring()

        threading.Thread(target=run, name="braided errand", daemon=True).start()
        return done

    def is_closed(self) -> bool:
        return self._closed.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Waits in a job; True if the query has ended meanwhile."""
        return self._closed.wait(timeout_s)

    def warm(self, executors: Sequence[Executor], workers: int | None = None) -> list[Found]:
        """Starts a worker for each core of executors, or so many at most on each, which imports
        what tasks need; what they found there.
        """
        sites = [
            site_of(executor)
            for executor in executors
            for _ in range(executor.cores if workers is None else min(workers, executor.cores))
        ]
        if not sites:
            return []
        self._begin("braided looks at hosts")
        location = self._location
        found = find(self._spark, self._placed, location.store, location.flow, sites, self._modules)
        for _ in range(_WARM_ROUNDS):
            self._run_like_a_batch(sites)
        return found

    def _run_like_a_batch(self, sites: Sequence[str]) -> None:
        """Rows through a shuffle, a sort and Python, in JVMs that have done none of it: half of
        what their first tasks would take is loading classes.
        """
        count = len(sites)
        channel = F.expr(f"int(pmod(xxhash64(id), {count}))")
        rows = self._spark.range(0, 1000 * count, 1, count)
        rows = rows.selectExpr("id", "string(id) AS text", "double(id) AS number")
        routed = rows.repartitionById(count, channel).sortWithinPartitions("text", "id")
        placed = self._placed.place(routed, sites)
        placed.mapInArrow(_pass_on, placed.schema).write.format("noop").mode("overwrite").save()

    def fetch(self, view: View, wanted: HostSlots) -> Fetched:
        """Has hosts fetch slots at the version of a view."""
        errands = []
        for host, slots_by_operator in wanted.items():
            shares = tuple(
                _share(name, view.operators[name], slots)
                for name, slots in slots_by_operator.items()
            )
            errands.append((host, HostErrand(self._location, shares)))
        fetched = self._run(errands, f"braided fetches slots at batch {view.batch}")
        return Fetched(
            sum(each.slots for each in fetched),
            sum(each.bytes for each in fetched),
            max((each.seconds for each in fetched), default=0.0),
        )

    def close(self) -> None:
        """Nothing is waited for any more; jobs that run are cancelled."""
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(Exception):  # the session may have ended, and all jobs with it
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def _begin(self, what: str) -> None:
        context = self._spark.sparkContext
        context.addJobTag(self._tag)
        context.setJobDescription(what)

    def _run(self, errands: Sequence[tuple[str, HostErrand]], what: str) -> list[Fetched]:
        if not errands:
            return []
        self._begin(what)
        hosts, work = [host for host, _ in errands], [errand for _, errand in errands]
        rows = self._placed.place(self._spark.range(0, len(hosts), 1, len(hosts)), hosts)
        found = rows.mapInArrow(run_errands(work), "fetched binary").collect()
        return [msgspec.msgpack.decode(bytes(row.fetched), type=Fetched) for row in found]


def _pass_on(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from chunks


def slots_to_fetch(
    name: str, table: RoutingTable, residence: Residence, version: OperatorVersion | None
) -> dict[str, tuple[int, ...]]:
    """The slots with state that their channels' hosts do not have, by host."""
    if version is None or not any(table.hosts):
        return {}
    names = list(dict.fromkeys(host for host in table.hosts if host))
    numbers = {host: n for n, host in enumerate(names)}
    of_channel = np.array([numbers.get(host, -1) for host in table.hosts], dtype=np.int32)
    wanted, here = of_channel[table.slots], residence.among(names)
    moved = np.flatnonzero((wanted >= 0) & (wanted != here))
    found: dict[str, list[int]] = {}
    for slot in moved.tolist():
        if version.length(slot):
            found.setdefault(names[wanted[slot]], []).append(slot)
    return {host: tuple(slots) for host, slots in found.items()}


def guests_to_fetch(
    table: RoutingTable, moves: KeyMoves, residence: Residence, version: OperatorVersion
) -> dict[str, tuple[int, ...]]:
    """The slots with state from which keys go to hosts that do not have them, by host."""
    names = list(dict.fromkeys(host for host in table.hosts if host))
    numbers = {host: n for n, host in enumerate(names)}
    of_channel = np.array([numbers.get(host, -1) for host in table.hosts] or [-1], dtype=np.int32)
    taking = of_channel[table.slots[moves.takers]] if names else np.full(len(moves), -1)
    # With a host's own slots it is `slots_to_fetch` that sees to them.
    own = of_channel[table.slots[moves.donors]] if names else taking
    away = (taking >= 0) & (taking != residence.among(names)[moves.donors]) & (taking != own)
    pairs = np.unique(np.stack([taking[away], moves.donors[away]]), axis=1)
    found: dict[str, list[int]] = {}
    for host, slot in pairs.T.tolist():
        if version.length(slot):
            found.setdefault(names[host], []).append(slot)
    return {host: tuple(slots) for host, slots in found.items()}


def _share(name: str, version: OperatorVersion, slots: tuple[int, ...]) -> SlotShare:
    return SlotShare(name, version.meta, slots, pack_slots(version.chains, slots))
