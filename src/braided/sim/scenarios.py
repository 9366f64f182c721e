"""The scenarios of `braided simulate`: what is simulated, and what is told of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from braided.control.levels import levels
from braided.control.policies.balancers import Elasticutor
from braided.control.policies.ds2 import UTILISATION, Ds2
from braided.control.policies.saso import Saso
from braided.control.policy import BalancePolicy, Limits, ScalePolicy
from braided.control.settings import Settings
from braided.control.worth import Prices
from braided.sim.arrivals import Arrivals, Constant, Sine, Spike, Steps
from braided.sim.cluster import Cluster, Run, SimFlow, SimOperator, simulate
from braided.sim.keys import Dominant, Hotspot, Zipf
from braided.sim.locality_figures import figures, panels
from braided.sim.plot import Panel, Series
from braided.sim.region import Region, RegionPeriod, run_region, settling, tracking, turns

__all__ = ["Result", "cluster_result", "run_scenario"]

STEPS = Steps(((250.0, 5000.0), (100.0, 10_000.0), (150.0, 2000.0)))
SINE = Sine(5000.0, 2500.0, 500.0)


@dataclass(frozen=True)
class Result:
    """What a simulation came to: fields for programs, a table and panels for people."""

    fields: Mapping[str, Any]
    table: tuple[Mapping[str, Any], ...]
    panels: tuple[Panel, ...]


def run_scenario(
    name: str,
    scale: ScalePolicy | None = None,
    balance: BalancePolicy | None = None,
    seed: int = 0,
) -> Result:
    """Runs the scenario of that name, with its own policies or the given ones."""
    return _RUNNERS[name](scale, balance, seed)


_Runner = Callable[[ScalePolicy | None, BalancePolicy | None, int], Result]


def _region(
    arrivals: Arrivals, remote: float = float("inf"), noise: float = 0.01, duration_s: float = 1000
) -> _Runner:
    def run(scale: ScalePolicy | None, balance: BalancePolicy | None, seed: int) -> Result:
        region = Region(arrivals, remote=remote, noise=noise, seed=seed)
        periods = run_region(region, scale or Saso(), duration_s)
        steps = levels(1, region.channels_max)
        if isinstance(arrivals, Sine):
            met = [tracking(periods, steps)]
        else:
            changes = arrivals.changes(duration_s) if isinstance(arrivals, Steps) else [0.0]
            met = settling(periods, changes, steps)
        fields = {
            "settle_periods": max(each.periods for each in met),
            "overshoot": max(each.overshoot for each in met),
            "oscillations": sum(each.oscillations for each in met),
            "handled_share": sum(p.handled for p in periods) / sum(p.load for p in periods),
            "channels_last": periods[-1].channels,
            "changes": [
                {"at_s": e.at_s, "levels": e.levels, "settle_periods": e.periods} for e in met
            ],
        }
        return Result(fields, tuple(map(_period_row, periods)), _region_panels(periods))

    return run


def _hard(arrivals: Arrivals, duration_s: float = 120, channels: int = 12, **of: Any) -> _Runner:
    """32 hosts of 8 cores, and whatever makes life hard."""
    operator = SimOperator(
        "sum",
        of.pop("keys", Zipf(keys=20_000, skew=0.3)),
        slots=1024,
        channels=channels,
        timer_s=of.pop("timer_s", 0.0),
        timer_slots=of.pop("timer_slots", 0),
    )
    flow = SimFlow(
        Cluster(hosts=32, cores=8), (operator,), arrivals, duration_s=duration_s, noise=0.1, **of
    )
    return _cluster(flow, Limits(channels_max=256, calm_s=3.0))


def _cluster(flow: SimFlow, limits: Limits) -> _Runner:
    def run(scale: ScalePolicy | None, balance: BalancePolicy | None, seed: int) -> Result:
        settings = Settings(
            scale=scale or Ds2(),
            balance=balance or Elasticutor(),
            limits=limits,
            prices=Prices(least_batch_s=0.05),
        )
        run = simulate(_seeded(flow, seed), settings)
        result = cluster_result(run)
        return replace(result, fields={**result.fields, **_followed(run, flow)})

    return run


def _followed(run: Run, flow: SimFlow) -> dict[str, Any]:
    """How the channels followed the load: the most there were over those that its peak needs,
    whatever the policy, and how often they turned round where the load did not.
    """
    needed = _needed(flow, max(b.load for b in run.batches))
    return {
        "needed": needed,
        "overshoot": round(max(b.channels for b in run.batches) / needed, 3),
        "turns": max(
            0,
            turns([b.channels for b in run.batches]) - turns([round(b.load) for b in run.batches]),
        ),
        "late_batches": sum(b.duration_s > 1 for b in run.batches),
    }


def _needed(flow: SimFlow, rows_per_s: float) -> int:
    """The fewest channels, of all operators together, that are busy for no more than four fifths of
    the interval less the overhead; no chance and no skew are in it.
    """
    given: dict[str, float] = {}
    roots = []
    for operator in flow.operators:
        taken = sum(given[up] for up in operator.upstream) if operator.upstream else rows_per_s
        given[operator.name] = operator.selectivity * taken
        roots.append(math.sqrt(taken * operator.row_s + operator.timer_s))
    room = UTILISATION * (1 - flow.cluster.overhead_s / flow.interval_s)
    return sum(max(1, math.ceil(root * sum(roots) / room - 1e-9)) for root in roots)


def cluster_result(run: Run) -> Result:
    """A run of the cluster, with a line for every batch in the table."""
    rows = tuple(
        {
            "batch": b.batch,
            "start_s": round(b.start_s, 2),
            "rows": int(b.rows),
            "channels": b.channels,
            "batch_s": round(b.duration_s, 3),
            "latency_s": round(b.latency_s, 3),
            "imbalance": round(b.imbalance, 3),
            "bound_ratio": round(b.bound_ratio, 3),
            "moved_slots": b.moved_slots,
        }
        for b in run.batches
    )
    at = [b.start_s for b in run.batches]
    panels = (
        Panel("rows per second offered", (Series("load", at, [b.load for b in run.batches]),)),
        Panel("channels", (Series("channels", at, [float(b.channels) for b in run.batches]),)),
        Panel(
            "seconds",
            (
                Series("latency", at, [b.latency_s for b in run.batches]),
                Series("batch", at, [b.duration_s for b in run.batches]),
            ),
        ),
        Panel("busiest over average", (Series("δ", at, [b.imbalance for b in run.batches]),)),
    )
    return Result(run.summary(), rows, panels)


def _seeded(flow: SimFlow, seed: int) -> SimFlow:
    return SimFlow(**{**vars(flow), "seed": seed})


def _period_row(period: RegionPeriod) -> dict[str, Any]:
    return {
        "at_s": period.at_s,
        "load": round(period.load),
        "handled": round(period.handled),
        "channels": period.channels,
        "needed": period.needed,
        "congestion": round(period.congestion, 3),
    }


def _region_panels(periods: list[RegionPeriod]) -> tuple[Panel, ...]:
    at = [p.at_s for p in periods]
    return (
        Panel(
            "rows per second",
            (
                Series("offered", at, [p.load for p in periods]),
                Series("handled", at, [p.handled for p in periods]),
            ),
        ),
        Panel(
            "channels",
            (
                Series("used", at, [float(p.channels) for p in periods]),
                Series("needed", at, [float(p.needed) for p in periods]),
            ),
        ),
    )


def _chain() -> tuple[SimOperator, ...]:
    keys = Zipf(keys=5000, skew=0.6, shuffles_per_minute=1.0)
    return (
        SimOperator("parse", keys, row_s=0.0002, selectivity=0.5, channels=2),
        SimOperator("match", keys, row_s=0.001, selectivity=0.4, upstream=("parse",), channels=2),
        SimOperator("total", keys, row_s=0.0005, upstream=("match",), channels=2),
    )


def _locality(scale: ScalePolicy | None, balance: BalancePolicy | None, seed: int) -> Result:
    found = figures(seed)
    return Result(found, tuple(found["figure_11"]), panels(found))


_SMALL = Cluster(hosts=4, cores=8)

_RUNNERS: dict[str, _Runner] = {
    "saso-step": _region(STEPS),
    "saso-sine": _region(SINE),
    "saso-remote": _region(Constant(9000.0), remote=3500.0, duration_s=500),
    "zipf-shuffle": _cluster(
        SimFlow(
            Cluster(hosts=32, cores=8),
            (
                SimOperator(
                    "calculator",
                    Zipf(keys=10_000, skew=0.5, shuffles_per_minute=2.0),
                    slots=8192,
                    channels=256,
                ),
            ),
            Constant(120_000.0),
        ),
        Limits(channels_min=256, channels_max=256),
    ),
    "hotspot": _cluster(
        SimFlow(
            _SMALL,
            (SimOperator("sum", Hotspot(hot_keys=40, share=0.5, every_s=30.0), channels=16),),
            Constant(10_000.0),
            duration_s=180,
        ),
        Limits(channels_min=16, channels_max=16),
    ),
    "surge": _cluster(
        SimFlow(
            _SMALL,
            (SimOperator("sum", Zipf(), channels=3),),
            Spike(2000.0, 8000.0, 40.0, 20.0),
            duration_s=120,
        ),
        Limits(channels_max=32),
    ),
    "noise-32": _hard(Constant(40_000.0), 280, channels=56, arrival_noise=0.3),
    "double-32": _hard(Spike(20_000.0, 40_000.0, 30.0, 45.0), channels=28),
    "tenfold-32": _hard(Spike(5_000.0, 50_000.0, 30.0, 45.0), channels=7),
    "sink-32": _hard(Constant(40_000.0), channels=20, sink_rows_per_s=15_000.0, rows_max=30_000.0),
    "key-32": _hard(Constant(20_000.0), 60, channels=12, keys=Dominant(share=0.04)),
    "timers-32": _hard(Constant(5_000.0), 60, channels=28, timer_s=12.0, timer_slots=128),
    "sine-32": _hard(Sine(30_000.0, 15_000.0, 150.0), 225, channels=42),
    "steps-32": _hard(
        Steps(((100.0, 20_000.0), (60.0, 40_000.0), (80.0, 8_000.0))), 240, channels=28
    ),
    "locality": _locality,
    "chain": _cluster(
        SimFlow(_SMALL, _chain(), Sine(6000.0, 4000.0, 200.0), duration_s=400),
        Limits(channels_max=16, total_max=32),
    ),
}
