"""`braided decisions`: what the controller of a query decided, why, why not, and what came of it.

It reads the event log beside the manifests; the query may be running, and with `--follow` lines are
printed as they come.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from braided.cli.simulate import CommandError
from braided.control.events import (
    CountingSwitched,
    CutShort,
    Decided,
    Event,
    EventLogError,
    Failed,
    Judged,
    Limited,
    Migrated,
    Planned,
    Started,
    encode,
    read,
)
from braided.store.durable.location import Location
from braided.store.durable.open_store import open_store
from braided.store.durable.store import Store

__all__ = ["decisions_command", "told"]

_NAME = "events.jsonl"
_LOOK_S = 0.5


def decisions_command(checkpoint: str, *, json: bool, follow: bool) -> int:
    """Prints a checkpoint's decisions, the oldest first."""
    store = open_store((Location.of(checkpoint) / "braided").text)
    lines = _lines(store)
    if not lines and not follow:
        raise CommandError(
            f"{checkpoint} has no event log: it is no query's checkpoint, or no batch has run"
        )
    _show(lines, json)
    while follow:
        time.sleep(_LOOK_S)
        seen, lines = lines, _lines(store)
        _show(_after(seen, lines), json)
    return 0


def _after(seen: list[bytes], lines: list[bytes]) -> list[bytes]:
    """The lines that have come since; the oldest may have gone meanwhile."""
    if not seen:
        return lines
    newest = seen[-1]
    for i in range(len(lines) - 1, -1, -1):
        if lines[i] == newest:
            return lines[i + 1 :]
    return lines


def _lines(store: Store) -> list[bytes]:
    """Whole lines of all files of the log, the oldest first."""
    names = [name for name in store.list("") if name.startswith("events") and "/" not in name]
    lines: list[bytes] = []
    for name in sorted(names, key=_age):
        try:
            found = bytes(store.get(name)).splitlines(keepends=True)
        except FileNotFoundError:  # it got another name, or was the oldest, just now
            continue
        lines += [line for line in found if line.endswith(b"\n")]
    return lines


def _age(name: str) -> tuple[int, int]:
    """The newest file comes last. On a disk numbers go up with age, in a store they are times."""
    number = name.removeprefix("events").removesuffix(".jsonl").removeprefix("-")
    if not number.isdigit():
        return 2, 0
    return (0, -int(number)) if int(number) < 1_000 else (1, int(number))


def _show(lines: Iterable[bytes], json: bool) -> None:
    try:
        for event in _spoken(read(lines)):
            text = encode(event).decode().rstrip("\n") if json else told(event)
            print(text, flush=True)
    except EventLogError as error:
        raise CommandError(f"the event log can't be read: {error}") from None


def _spoken(events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        if told(event):
            yield event


def told(event: Event) -> str:
    """A line for people; empty for measurements, and for plans that say no more than what was
    decided.
    """
    words = _words(event)
    operator = getattr(event, "operator", "")
    return f"batch {event.batch:>6}  {operator:<12} {words}".rstrip() if words else ""


def _words(event: Event) -> str:
    match event:
        case Started():
            bounds = f"{event.channels_min} to {event.channels_max} channels"
            return f"started with scale {event.scale}, balance {event.balance}, {bounds}"
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
        case CutShort():
            return (
                f"cut         after {event.after_s:.3g} s, {event.rows_left} rows left: {event.why}"
            )
        case CountingSwitched():
            return f"counting    {'on' if event.on else 'off'}: {event.why}"
        case Migrated():
            return f"migration   {event.strategy}: {event.outcome} {event.why}".rstrip()
        case _:
            return ""


def _decided(event: Decided) -> str:
    change = ""
    if event.channels_after != event.channels_before:
        change = f" {event.channels_before} -> {event.channels_after}"
    key = f" key {event.key}" if event.key else ""
    held = f"; not done: {event.held}" if event.held else ""
    return f"{event.kind:<11} #{event.decision}{change}{key}: {event.reason}{held}"


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
