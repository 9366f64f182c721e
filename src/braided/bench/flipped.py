"""Hot sets that are flipped with every second batch: a decision after a batch is late for half of
them. Part of `braided bench skew`.

Every flip has a hot set of its own: if two took turns, a table would soon fit both. What is hot has
most of the rows, and by chance some channels have several of these keys.

The same rows run with rows counted before they are routed (`auto`) and without (`off`).
`flipped_bound_ratio` is the busiest channel's busy time over the bound in the batches right after a
flip, `next_bound_ratio` in those that follow (medians). `batches_until_balanced` is how many
batches after a flip it takes until the busiest channel is within 1.15 times the bound (median over
flips; 2 where it never is, because then the next flip comes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from braided.bench.session import Arena, InputFiles, KeyNumbers, Progress, Query, median, run_all
from braided.bench.totals import last_per_key, published, same_rows
from braided.bench.waiting import ROW_S

__all__ = ["FlipSize", "measure_flips"]

_BALANCED = 1.15
_HOT_SHARE = 0.6
_PERIOD = 2
"""Batches between two flips."""

Start = Callable[[InputFiles, str, str, dict[str, Any]], Query]
"""Starts a query on an input, with a checkpoint, an output and options."""


@dataclass(frozen=True)
class FlipSize:
    """Rows a batch, batches that count, and those before, which have `warm_rows`."""

    rows: int
    batches: int
    channels: int
    warm: int = 6  # the controller begins with the fourth, and has seen a flip by the sixth
    warm_rows: int = 4_000
    keys: int = 10_000


def measure_flips(
    place: Arena, size: FlipSize, start: Start, operator: str, progress: Progress
) -> dict[str, Any]:
    """The same rows with and without the count."""
    made = InputFiles(place.work / "in-flipped")
    bounds_s = _fill(made, size)
    modes = {"auto": "same batch", "off": "next batch"}
    figures: dict[str, Any] = {"hot_share": _HOT_SHARE, "flip_every_batches": _PERIOD}
    identical = True
    for mode, words in modes.items():
        files = InputFiles(place.work / f"in-flipped-{mode}")
        files.show(made.files)
        path = place.fresh(f"out-flipped-{mode}")
        options = {"braided.balance.sameBatch": mode}
        batches = run_all(start(files, place.fresh("checkpoint"), path, options))
        output = last_per_key(published(place.spark, path, len(made.files)))
        identical = identical and same_rows([files.totals(place.spark), output])
        seen = batches[size.warm :]
        ratios = [
            max(each["braided"]["operators"][operator]["busyMs"]) / 1000 / bound_s
            for each, bound_s in zip(seen, bounds_s[size.warm :], strict=True)
        ]
        counted = [each["braided"]["sameBatch"] for each in seen]
        walls_ms = [float(each["durationMs"]["triggerExecution"]) for each in seen]
        figures[mode] = {
            "flipped_bound_ratio": round(median(ratios[::_PERIOD]), 3),
            "next_bound_ratio": round(median(ratios[1::_PERIOD]), 3),
            "batches_until_balanced": _until_balanced(ratios),
            "batch_ms": round(median(walls_ms)),
            "counted": sum(each["counted"] for each in counted),
            "pass_ms": round(median([each.get("passMs", 0.0) for each in counted]), 1),
        }
        progress(
            f"flipped hot set: {words}: {figures[mode]['flipped_bound_ratio']} of the bound in the "
            f"batch of the flip, {figures[mode]['next_bound_ratio']} in the next"
        )
    return {**figures, "identical": identical}


def _until_balanced(ratios: Sequence[float]) -> int:
    """Batches after a flip until the busiest channel is near the bound."""
    waits = []
    for first in range(0, len(ratios), _PERIOD):
        period = ratios[first : first + _PERIOD]
        waits.append(next((n for n, r in enumerate(period) if r <= _BALANCED), _PERIOD))
    return int(median(waits))


def _fill(files: InputFiles, size: FlipSize) -> list[float]:
    """The input of all batches; the bound of each."""
    random = np.random.default_rng(23)
    bounds_s = []
    for number in range(size.warm + size.batches):
        if number % _PERIOD == 0:
            # Two for each channel: enough to be spread evenly, and too few to be so by chance.
            hot_keys = random.choice(size.keys, 2 * size.channels, replace=False)
        rows = size.warm_rows if number < size.warm else size.rows
        hot = random.choice(hot_keys, int(rows * _HOT_SHARE))
        cold = random.integers(0, size.keys, rows - hot.size)
        drawn: KeyNumbers = random.permutation(np.concatenate([hot, cold]))
        files.add(drawn)
        bounds_s.append(ROW_S * max(rows / size.channels, int(np.bincount(drawn).max())))
    return bounds_s
