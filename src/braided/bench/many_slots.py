"""What a batch costs the driver and a worker, and a start the driver, by the slots there are.

No Spark: the reports of tasks are made up, and go the way of a commit. Every channel changes some
of its slots in every batch, chains grow until slots are due for snapshots, as they do in a query,
and the manifests are files. Each number of slots has a process of its own, and so has the worker,
whose memory and time are those for what one channel is told of its slots. They take turns, several
times over: how long a disk takes to sync a file differs from one minute to the next.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from braided.bench.session import Progress, median
from braided.control.routing.table import RoutingTable
from braided.query.commit import manifest_of
from braided.store.durable.local_store import LocalStore
from braided.store.history.manifest import OperatorMeta, View
from braided.store.history.manifest_log import ManifestLog
from braided.store.history.runs import LOG_SUFFIX, SNAP_SUFFIX, RunFile, digest_of
from braided.store.history.shipped_chains import ChainPacker, ship_chains
from braided.store.history.slot_sets import SlotNumbers, encode_slots
from braided.store.slots.channel_state import SnapshotLimits
from braided.tasks.outcome import Outcome
from braided.tasks.reports import ChannelReport, SlotReport
from braided.tasks.spec import BatchSpec

__all__ = ["SlotsPlan", "measure_slots"]

_FLOW, _OPERATOR = "flow", "totals"
_LIMITS = SnapshotLimits()
_FULL_EVERY = 64  # manifests, as a query has it if nobody says otherwise
_MB = 1e6
_COUNTS = ("slots", "channels", "batches")


@dataclass(frozen=True)
class SlotsPlan:
    """Numbers of slots, of which the others are compared with the first; keys that a batch touches;
    how often all of it is measured, of which the medians count.

    The largest full manifest of them all is the one to load.
    """

    slots: Sequence[int] = (256, 4_096, 16_384)
    channels: int = 64
    last: int = 320
    keys: int = 100_000
    rounds: int = 3


def measure_slots(plan: SlotsPlan, progress: Progress) -> list[dict[str, Any]]:
    """A case for each number of slots."""
    rounds = [_round(plan) for _ in range(plan.rounds)]
    cases = []
    for measured in zip(*rounds, strict=True):
        medians = {name: median([case[name] for case in measured]) for name in measured[0]}
        case = {name: int(v) if name in _COUNTS else round(v, 3) for name, v in medians.items()}
        cases.append(case)
        progress(
            f"{case['slots']:>12,} slots: plans in {case['plan_ms']:.1f} ms, commits in "
            f"{case['commit_ms']:.1f} ms, {case['commit_ratio']:.2f} times as long as with the "
            f"fewest; full manifest {case['manifest_mb']:.2f} MB, loaded in {case['load_s']:.2f} s"
        )
    return cases


def _round(plan: SlotsPlan) -> list[dict[str, Any]]:
    cases = [_case(slots, plan) for slots in plan.slots]
    for case in cases:
        case["commit_ratio"] = round(case["commit_ms"] / cases[0]["commit_ms"], 2)
    return cases


def _case(slots: int, plan: SlotsPlan) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="braided-bench-") as root,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as driver,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker,
    ):
        case, spec = driver.submit(_drive, root, slots, plan).result()
        return {**case, **worker.submit(_open_channel, root, slots, spec).result()}


def _drive(root: str, slots: int, plan: SlotsPlan) -> tuple[dict[str, Any], str]:
    """The driver's part of the batches, and what the tasks of the last one are told."""
    before_mb = _peak_mb()
    files = LocalStore(root)
    manifests = ManifestLog(files)
    tasks = _Tasks(slots, plan)
    metas = {_OPERATOR: OperatorMeta(0, slots, "", "", "")}
    tables = {_OPERATOR: tasks.table}
    packer = ChainPacker()
    view, spec = View.empty(), ""
    commit_s: dict[bool, list[float]] = {True: [], False: []}
    plan_s: list[float] = []
    largest, manifest_bytes = 0, 0
    for batch in range(plan.last + 1):
        outcome = reports = None  # a query lets go of the last batch's between batches
        reports = {_OPERATOR: tasks.run(batch, view)}
        begun = perf_counter()
        if view.operators:
            chains = view.operators[_OPERATOR].chains
            packed = packer.pack(chains, tasks.table.slots, plan.channels)
            shipped = {_OPERATOR: ship_chains(files, "state/chains", packed)}
            spec = BatchSpec("", batch, 0, 0, 0, {}, None, chains=shipped).encode()
        planned = perf_counter()
        outcome = Outcome(batch, 0, 0, metas, tables, reports, (), [], {})
        full = batch % _FULL_EVERY == 0
        manifests.write(manifest_of(outcome, view, _FLOW, "bench", full))
        view = manifests.view_at(batch, _FLOW)
        commit_s[full].append(perf_counter() - planned)
        plan_s.append(planned - begun)
        size = (Path(root) / "manifests" / f"{batch:08}.json").stat().st_size
        if full and size > manifest_bytes:
            largest, manifest_bytes = batch, size
    driver_mb = _peak_mb() - before_mb
    begun = perf_counter()
    manifests.view_at(largest)
    load_s = perf_counter() - begun
    # Of late batches, when chains are long; one of so many commits is a full manifest.
    delta_s, full_s = (median(times[len(times) // 2 :]) for _, times in sorted(commit_s.items()))
    commit_ms = 1000 * (delta_s + (full_s - delta_s) / _FULL_EVERY)
    case = {
        "slots": slots,
        "channels": plan.channels,
        "batches": plan.last,
        "manifest_mb": round(manifest_bytes / _MB, 3),
        "load_s": round(load_s, 3),
        "commit_ms": round(commit_ms, 2),
        "plan_ms": round(1000 * median(plan_s[len(plan_s) // 2 :]), 2),
        "spec_kb": round(len(spec) / 1e3, 1),
        "driver_mb": round(driver_mb, 1),
    }
    return case, spec


def _open_channel(root: str, slots: int, spec: str) -> dict[str, Any]:
    """What a worker does, and needs, to know the chains of its channel."""
    files = LocalStore(root)
    before_mb = _peak_mb()
    begun = perf_counter()
    chains = BatchSpec.decode(spec).chains[_OPERATOR].chains(files, 0, slots)
    opened_ms = 1000 * (perf_counter() - begun)
    assert len(chains.runs) > 0
    return {"worker_ms": round(opened_ms, 2), "worker_mb": round(_peak_mb() - before_mb, 1)}


class _Tasks:
    """The tasks of an operator: what they would report, without the work."""

    def __init__(self, slots: int, plan: SlotsPlan) -> None:
        self.table = RoutingTable.initial(slots, plan.channels)
        owners = self.table.slots
        self._own = [np.flatnonzero(owners == c).astype(np.int32) for c in range(plan.channels)]
        self._touched = 1 - np.exp(-plan.keys / slots)  # of the slots, by so many keys
        self._random = np.random.default_rng(5)

    def run(self, batch: int, view: View) -> list[ChannelReport]:
        return [self._report(batch, channel, view) for channel in range(len(self._own))]

    def _report(self, batch: int, channel: int, view: View) -> ChannelReport:
        own = self._own[channel]
        touched = own[self._random.random(len(own)) < self._touched]
        attempt = f"{batch}-{channel}-{digest_of(b'%d %d' % (batch, channel))[:12]}"
        return ChannelReport(
            operator=_OPERATOR,
            channel=channel,
            attempt=attempt,
            log=_run(attempt + LOG_SUFFIX, touched),
            snap=_run(attempt + SNAP_SUFFIX, _due_for_snapshot(touched, view)),
            carry=None,
            slots=tuple(SlotReport(s, 8, 9000, 60, 900, 0, 0, None) for s in touched.tolist()),
            keys_added=0,
            bytes_added=0,
            has_timers=False,
            rows_in=len(touched),
            rows_out=len(touched),
            keys_touched=len(touched),
            busy_ns=0,
            output_digest="",
            slots_opened=len(touched),
            cache_hits=len(touched),
            rolled_back=0,
            caught_up=0,
            rebuilt=0,
            bytes_caught_up=0,
            cache_errors=0,
        )


def _due_for_snapshot(touched: SlotNumbers, view: View) -> SlotNumbers:
    """Those with the longest chains, where these are long enough."""
    version = view.operators.get(_OPERATOR)
    if version is None:
        return touched[:0]
    lengths = np.array([version.length(slot) for slot in touched.tolist()])
    longest = np.argsort(-lengths, kind="stable")[: _LIMITS.snapshots_per_task]
    return touched[np.sort(longest[lengths[longest] > _LIMITS.snapshot_runs])]


def _run(name: str, slots: SlotNumbers) -> RunFile | None:
    if not len(slots):
        return None
    path = f"state/{_OPERATOR}/{name}"
    return RunFile(path, digest_of(path.encode()), 9_000, encode_slots(slots), 3_000)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / _MB
