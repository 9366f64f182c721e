"""`braided simulate` and `braided replay`: what policies do, as a table, as JSON, as a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from braided.cli.event_files import EventFiles
from braided.cli.report import as_json, as_text
from braided.control.events import Event, EventLogError, Started, read
from braided.control.policy import BalancePolicy, Bounds, Limits, ScalePolicy
from braided.control.registry import balance_policy, policy_names, scale_policy
from braided.control.settings import Settings
from braided.errors import BraidedError
from braided.sim.plot import svg
from braided.sim.replay import (
    read_recording,
    recording_fields,
    replay,
    retrace,
    retraced_fields,
)
from braided.sim.scenarios import Result, cluster_result, run_scenario
from braided.store.durable.location import Location
from braided.store.durable.open_store import open_store

__all__ = ["CommandError", "replay_command", "simulate_command"]

_CHANNELS_MAX = 64
"""That a policy may take, where a log does not say."""
_LINES = 40
"""Lines of a table that a person is shown; a plot has them all."""


class CommandError(BraidedError):
    """A command that can't be carried out; says what is wrong, and what there is to choose from."""


def simulate_command(
    scenario: str, policies: Sequence[str], *, json: bool, plot: str | None, seed: int
) -> int:
    """Runs a scenario and shows what came of it."""
    scale, balance = _policies(policies)
    result = run_scenario(scenario, scale, balance, seed)
    fields = {"scenario": scenario, "seed": seed, **result.fields}
    _shown(fields, result, json=json)
    _plotted(plot, scenario, result)
    return 0


def replay_command(
    log: str, policies: Sequence[str], *, json: bool, plot: str | None, channels_max: int | None
) -> int:
    """Replays an event log with other policies and shows both."""
    scale, balance = _policies(policies)
    try:
        events = list(read(_lines(log)))
        recording = read_recording(events)
    except (OSError, EventLogError) as error:
        raise CommandError(f"the event log {log} can't be replayed: {error}") from None
    chosen = Settings(limits=_bounds(events, channels_max))
    settings = Settings(
        scale=scale or chosen.scale, balance=balance or chosen.balance, limits=chosen.limits
    )
    result = cluster_result(replay(recording, settings))
    fields = {
        "log": log,
        "policy": ", ".join(policies),
        "recorded": dict(recording_fields(recording)),
        "retraced": dict(retraced_fields(recording, retrace(recording))),
        "replayed": dict(result.fields),
    }
    _shown(fields, result, json=json)
    _plotted(plot, f"{log} with {', '.join(policies)}", result)
    return 0


def _lines(log: str) -> list[bytes]:
    """Those of one file, or all that a query has left beside its manifests."""
    location = Location.of(log)
    is_file = log.endswith(".jsonl") if location.local is None else location.local.is_file()
    if is_file:
        directory, _, name = location.text.rpartition("/")
        return bytes(open_store(directory).get(name)).splitlines(keepends=True)
    lines = EventFiles(open_store((location / "braided").text)).fresh()
    if not lines:
        raise EventLogError("it is no file, and no checkpoint of a query that has run a batch")
    return lines


def _bounds(events: Sequence[Event], channels_max: int | None) -> Limits:
    """Those of the query as it was started last, unless others are asked for."""
    started = next((event for event in reversed(events) if isinstance(event, Started)), None)
    if started is None:  # a log of an earlier version
        return Limits(channels_max=_CHANNELS_MAX if channels_max is None else channels_max)
    most = started.channels_max if channels_max is None else channels_max
    return Limits(
        channels_min=min(started.channels_min, most),
        channels_max=most,
        operators={
            name: own if channels_max is None else _at_most(own, channels_max)
            for name, own in started.operators.items()
        },
        excluded=frozenset(started.excluded),
    )


def _at_most(own: Bounds, channels_max: int) -> Bounds:
    least = own.channels_min
    return Bounds(None if least is None else min(least, channels_max), channels_max)


def _policies(names: Sequence[str]) -> tuple[ScalePolicy | None, BalancePolicy | None]:
    """A scale and a balance policy, each named at most once."""
    known = policy_names()
    scale: ScalePolicy | None = None
    balance: BalancePolicy | None = None
    for name in names:
        if name in known["scale"] and scale is None:
            scale = scale_policy(name)
        elif name in known["balance"] and balance is None:
            balance = balance_policy(name)
        elif name in known["scale"] or name in known["balance"]:
            raise CommandError(f"{name} is a second policy for the same thing")
        else:
            raise CommandError(
                f"there is no policy {name!r}; to scale there are {', '.join(known['scale'])}, "
                f"to balance {', '.join(known['balance'])}"
            )
    return scale, balance


def _shown(fields: Mapping[str, Any], result: Result, *, json: bool) -> None:
    if json:
        print(as_json(fields), flush=True)
        return
    step = max(1, -(-len(result.table) // _LINES))
    every = f"every {step} lines" if step > 1 else "all lines"
    print(as_text({**fields, f"over time, {every}": list(result.table[::step])}), flush=True)


def _plotted(path: str | None, title: str, result: Result) -> None:
    if path is None:
        return
    try:
        Path(path).write_text(svg(title, result.panels), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"the plot can't be written: {error}") from None
