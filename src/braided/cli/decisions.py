"""`braided decisions`: what the controller of a query decided, why, why not, and what came of it.

It reads the event log beside the manifests; the query may be running, and with `--follow` lines are
printed as they come.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from braided.cli.event_files import EventFiles
from braided.cli.simulate import CommandError
from braided.control.events import (
    Counted,
    CountingSwitched,
    CutShort,
    Decided,
    Event,
    EventLogError,
    Failed,
    Judged,
    Limited,
    Located,
    Migrated,
    Planned,
    Started,
    encode,
    read,
    unjudged,
)
from braided.store.durable.location import Location
from braided.store.durable.open_store import open_store

__all__ = ["decisions_command", "told"]

Waiting = dict[int, str]
"""Decisions without a verdict so far, by number, and the operators that they are about."""
_ENDED = "the query ended before it could be seen what came of it"
_LOOK_S = 0.5


def decisions_command(checkpoint: str, *, json: bool, follow: bool) -> int:
    """Prints a checkpoint's decisions, the oldest first."""
    files = EventFiles(open_store((Location.of(checkpoint) / "braided").text))
    lines = files.fresh()
    if not lines and not follow:
        raise CommandError(
            f"{checkpoint} has no event log: it is no query's checkpoint, or no batch has run"
        )
    waiting: Waiting = {}
    _show(lines, json, waiting)
    while follow:
        time.sleep(_LOOK_S)
        _show(files.fresh(), json, waiting)
    return 0


def _show(lines: Iterable[bytes], json: bool, waiting: Waiting) -> None:
    try:
        for event in _spoken(read(lines), waiting):
            text = encode(event).decode().rstrip("\n") if json else told(event)
            print(text, flush=True)
    except EventLogError as error:
        raise CommandError(f"the event log can't be read: {error}") from None


def _spoken(events: Iterable[Event], waiting: Waiting) -> Iterator[Event]:
    """What is told, and, where a query was started anew, that decisions of the one before it which
    still waited for a verdict get none: nobody wrote that down when it ended.
    """
    for event in events:
        match event:
            case Started():
                for number, operator in waiting.items():
                    yield unjudged(event.batch, operator, number, _ENDED)
                waiting.clear()
            case Decided(held=""):
                waiting[event.decision] = event.operator
            case Located(held=""):
                waiting[event.decision] = ", ".join(event.operators)
            case Planned(dropped=True):
                for number in event.decisions:
                    waiting.pop(number, None)
            case Judged():
                waiting.pop(event.decision, None)
        if told(event):
            yield event


def told(event: Event) -> str:
    """A line for people; empty for what only was measured."""
    words = _words(event)
    operator = getattr(event, "operator", "")
    return f"batch {event.batch:>6}  {operator:<12} {words}".rstrip() if words else ""


def _words(event: Event) -> str:
    match event:
        case Started():
            return f"started with scale {event.scale}, balance {event.balance}, {_bounds(event)}"
        case Decided():
            return _decided(event)
        case Planned() if event.dropped:
            costs = f"costs {event.cost_s:.3g} s, brings {event.gain_s:.3g} s"
            return f"dropped     {_numbers(event.decisions)}: {costs}"
        case Planned():
            moved = f"{event.moved_slots} slots move, {event.moved_bytes:,.0f} bytes"
            return f"asked for   {_numbers(event.decisions)}: {event.channels} channels, {moved}"
        case Judged():
            return f"{event.verdict:<11} #{event.decision}{_observed(event)}"
        case Limited():
            wish = f", {event.wished} wished for" if event.wished != event.channels else ""
            state = f"{event.channels} channels{wish}, congestion {event.congestion:.2f}"
            return f"limited by  {event.factor}: {event.why} ({state})"
        case Failed():
            return f"failed      {event.policy}, held until batch {event.held_until}: {event.error}"
        case CutShort() if (caught_up_s := event.metrics.get("catch_up_s")) is not None:
            return f"cut         what was left is done {caught_up_s:.3g} s after the order"
        case CutShort():
            return (
                f"cut         after {event.after_s:.3g} s, {event.rows_left} rows left: {event.why}"
            )
        case Counted() if event.moved_slots:
            moved = ", ".join(f"{n} slots of {name}" for name, n in event.moved_slots.items())
            return f"counted     {moved} move within the batch: saves {event.saved_s:.3g} s"
        case CountingSwitched():
            return f"counting    {'on' if event.on else 'off'}: {event.why}"
        case Located():
            return _located(event)
        case Migrated():
            return f"migration   {event.strategy}: {event.outcome} {event.why}".rstrip()
        case _:
            return ""


def _bounds(event: Started) -> str:
    own = [f"{name} {b.channels_min} to {b.channels_max}" for name, b in event.operators.items()]
    kept = [f"{name} as it is" for name in event.excluded]
    bounds = f"{event.channels_min} to {event.channels_max} channels"
    return "; ".join([bounds, *own, *kept])


def _decided(event: Decided) -> str:
    change = ""
    if event.channels_after != event.channels_before:
        change = f" {event.channels_before} -> {event.channels_after}"
    key = f" key {event.key}" if event.key else ""
    held = f"; not done: {event.held}" if event.held else ""
    return f"{event.kind:<11} #{event.decision}{change}{key}: {event.reason}{held}"


def _located(event: Located) -> str:
    names = ", ".join(event.operators)
    moved = f"{event.moved_keys} keys move, {event.moved_bytes:,.0f} bytes"
    held = f"; not done: {event.held}" if event.held else ""
    return f"locality    #{event.decision} {names}: {event.reason}; {moved}{held}"


def _observed(event: Judged) -> str:
    if event.why:
        return f": {event.why}"
    if event.observed is None or event.before is None or event.expected is None:
        return ""
    numbers = f"{event.before:.4g}, promised {event.expected:.4g}, is {event.observed:.4g}"
    held = "" if event.held_until is None else f"; held back until batch {event.held_until}"
    return f": {event.metric.replace('_', ' ')} was {numbers}{held}"


def _numbers(decisions: Iterable[int]) -> str:
    return ", ".join(f"#{number}" for number in decisions)
