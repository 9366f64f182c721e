"""From the reports of a batch to its manifest: the only commit point.

The rules, in order:
  1. every channel of every operator has reported, exactly one result each   (reports.py) 2. every
  file that a report names is durable                               (the task wrote and synced it)
  3. the manifest is created, atomically, never overwritten                  (manifests.py) 4.
  only then is anything published                                         (batch.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from braided.control.routing.table import RoutingTable
from braided.kinds.operator.first_state import Imported
from braided.store.history.manifest import (
    CarryFile,
    Manifest,
    OperatorMeta,
    OperatorPart,
    PinnedKey,
    Prepared,
    View,
    encode_table,
    to_full,
)
from braided.tasks.reports import ChannelReport

__all__ = ["CONTROL", "Outcome", "manifest_of"]


@dataclass(frozen=True)
class Outcome:
    """What a batch did, before it is made true."""

    batch: int
    batch_time_ms: int
    watermark_ms: int
    metas: Mapping[str, OperatorMeta]
    tables: Mapping[str, RoutingTable]
    reports: Mapping[str, list[ChannelReport]]
    outputs: tuple[Prepared, ...]
    fed_back: list[CarryFile]
    initial: Mapping[str, Imported]
    """What operators in their first batch started with."""


CONTROL = "control"
"""Where in a manifest the controller's memory is."""


def manifest_of(
    outcome: Outcome, view: View, flow: str, writer: str, full: bool, memory: str | None = None
) -> Manifest:
    """The manifest that makes an outcome true on top of a view."""
    operators = {}
    carry = list(outcome.fed_back)
    for name, reports in outcome.reports.items():
        operators[name] = _part(name, outcome, view, reports)
        carry += [report.carry for report in reports if report.carry is not None]
    delta = Manifest(
        flow=flow,
        batch=outcome.batch,
        full=False,
        writer=writer,
        batch_time_ms=outcome.batch_time_ms,
        watermark_ms=outcome.watermark_ms,
        operators=operators,
        outputs=outcome.outputs,
        carry=tuple(carry),
        dead=tuple(r.dead for rs in outcome.reports.values() for r in rs if r.dead is not None),
        extra={} if memory is None else {CONTROL: memory},
    )
    return to_full(view, delta) if full or view.batch < 0 else delta


def _part(name: str, outcome: Outcome, view: View, reports: list[ChannelReport]) -> OperatorPart:
    before = view.operators.get(name)
    table = outcome.tables[name]
    changed = before is None or before.epoch != table.epoch
    pins = tuple(PinnedKey(p.key, p.hash, p.check, p.slot) for p in table.pins)
    snaps = [report.snap for report in reports if report.snap is not None]
    logs = [report.log for report in reports if report.log is not None]
    slots = [slot for report in reports for slot in report.slots]
    # State that it starts with comes before all that the batch did to it.
    start = outcome.initial.get(name, Imported())
    known = start.due if before is None else before.due
    keys, size = (start.keys, start.bytes) if before is None else (before.keys, before.bytes)
    due: dict[int, int | None] = {**start.due}
    due |= {s.slot: s.due_ms for s in slots if s.due_ms != known.get(s.slot)}
    return OperatorPart(
        channels=table.channels,
        meta=outcome.metas[name] if before is None or before.meta != outcome.metas[name] else None,
        table=encode_table(table.slots) if changed else None,
        epoch=table.epoch,
        runs=(*start.runs, *snaps, *logs),
        new=len(start.runs) + len(snaps) + len(logs),
        due=due,
        keys=keys + sum(s.keys for s in slots),
        bytes=size + sum(s.bytes for s in slots),
        pins=pins if changed else None,
    )
