"""Time and durable bytes of a batch touching 10 thousand keys, as state grows to 10 million.

One query whose state is loaded to each size with large batches, then measured. The keys that
a batch touches are spread over all there are. `ratio` is the median batch time at the largest size
over that at the smallest. Durable bytes are what is written for a batch: by the engine's own count,
and as the sizes of the files. `touched` shows them for other numbers of keys, at the largest size.
`by_slots` is what the driver and a worker pay for slots, of which there may be many thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import braided
from braided.bench.many_slots import SlotsPlan, measure_slots
from braided.bench.session import (
    TOTALS,
    Arena,
    InputFiles,
    Progress,
    arena,
    median,
    run_all,
    touched_keys,
)
from braided.bench.totals import Totals

__all__ = ["Plan", "measure", "run"]


@dataclass(frozen=True)
class Plan:
    """Sizes of state in keys, ascending; keys a batch; batches at each size; rows to load by."""

    sizes: Sequence[int] = (10_000, 100_000, 1_000_000, 10_000_000)
    touched: int = 10_000
    others: Sequence[int] = (1_000, 100_000)
    warm: int = 5
    batches: int = 20
    load_rows: int = 500_000
    slots: SlotsPlan = field(default_factory=SlotsPlan)


_FULL = Plan()
_QUICK = Plan(
    sizes=(10_000, 100_000, 1_000_000),
    warm=4,
    batches=10,
    load_rows=250_000,
    slots=SlotsPlan(last=128, rounds=1),
)


@dataclass(frozen=True)
class _StatePhase:
    """Batches of the query that are measured together."""

    keys: int
    touched: int
    first: int
    count: int


def run(quick: bool, progress: Progress) -> dict[str, Any]:
    with arena("state-size") as place:
        plan = _QUICK if quick else _FULL
        result = measure(place, plan, progress)
    progress("measuring what slots cost")
    return {**result, "by_slots": measure_slots(plan.slots, progress), "quick": quick}


def measure(place: Arena, plan: Plan, progress: Progress) -> dict[str, Any]:
    inputs = InputFiles(place.work / "in")
    phases = _lay_out(inputs, plan)
    checkpoint = place.fresh("checkpoint")
    rows = braided.stream(inputs.stream(place.spark))
    writer = rows.groupBy("k").apply(Totals, TOTALS).writeStream.format("noop")
    progress(f"loading and measuring up to {plan.sizes[-1]:,} keys")
    # All files stay, so that what each batch wrote can be looked up at the end.
    query = writer.options(
        **{"checkpointLocation": checkpoint, "braided.retainedManifests": 100_000}
    ).start()
    batches = {batch["batchId"]: batch for batch in run_all(query)}
    files = _file_bytes(Path(checkpoint) / "braided")
    results = []
    for phase in phases:
        chosen = [batches[number] for number in range(phase.first, phase.first + phase.count)]
        results.append(_summary(phase, chosen, files))
        progress(
            f"{phase.keys:>12,} keys, {phase.touched:>8,} touched: "
            f"{results[-1]['batch_ms']:>7.0f} ms, {results[-1]['durable_bytes']:>12,} bytes a batch"
        )
    sizes, others = results[: len(plan.sizes)], results[len(plan.sizes) :]
    return {
        "ratio": round(sizes[-1]["batch_ms"] / sizes[0]["batch_ms"], 3),
        "bytes_ratio": round(sizes[-1]["durable_bytes"] / sizes[0]["durable_bytes"], 3),
        "keys_touched": plan.touched,
        "sizes": sizes,
        "touched": sorted([*others, sizes[-1]], key=lambda r: r["keys_touched"]),
    }


def _lay_out(inputs: InputFiles, plan: Plan) -> list[_StatePhase]:
    """Writes the input of the whole run, a file a batch, and says which batches are measured."""
    random = np.random.default_rng(11)
    phases: list[_StatePhase] = []
    batch = loaded = 0
    for keys in plan.sizes:
        missing = np.arange(loaded, keys)
        for part in np.array_split(missing, max(1, -(-len(missing) // plan.load_rows))):
            inputs.add(part)
            batch += 1
        loaded = keys
        touched = [plan.touched, *(plan.others if keys == plan.sizes[-1] else ())]
        for number in touched:
            for _ in range(plan.warm + plan.batches):
                inputs.add(touched_keys(random, number, keys))
            phases.append(_StatePhase(keys, number, batch + plan.warm, plan.batches))
            batch += plan.warm + plan.batches
    return phases


def _file_bytes(root: Path) -> dict[int, int]:
    """What lies in the checkpoint, by the batch that wrote it."""
    found: dict[int, int] = {}
    paths = [*(root / "state").rglob("*.run"), *(root / "manifests").glob("*.json")]
    for path in paths:
        batch = int(path.name.split("-")[0].split(".")[0])
        found[batch] = found.get(batch, 0) + path.stat().st_size
    return found


def _summary(phase: _StatePhase, batches: list[Any], files: dict[int, int]) -> dict[str, Any]:
    parts = [batch["braided"]["operators"]["Totals"] for batch in batches]
    durable = [files[batch["batchId"]] for batch in batches]
    return {
        "keys": phase.keys,
        "keys_touched": round(median([part["keysTouched"] for part in parts])),
        "batch_ms": median([batch["durationMs"]["triggerExecution"] for batch in batches]),
        "changelog_bytes": round(median([part["changelogBytes"] for part in parts])),
        "snapshot_bytes_mean": round(sum(part["snapshotBytes"] for part in parts) / len(parts)),
        "durable_bytes": round(median(durable)),
        "durable_bytes_per_key": round(median(durable) / phase.touched, 1),
        "state_bytes": parts[-1]["stateBytes"],
        "batches": len(batches),
    }
