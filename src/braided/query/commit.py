"""From the reports of a batch to its manifest: the only commit point.

The rules, in order:
  1. Every channel of every operator has reported, exactly one result each (`tasks/reports.py`).
  2. Every file that a report names is durable: its task wrote and synced it (`tasks/channel.py`).
  3. The manifest is created, atomically, and never overwritten (`store/history/manifest_log.py`).
  4. Only then is anything published (`query/engine.py`), if nobody has taken over meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from braided.query.losing import fenced
from braided.query.stored_tables import store_assigned, stored_table
from braided.query.version import Version
from braided.spark.source_log import Entry, SourceLog
from braided.store.durable.lease import Lease
from braided.store.history.manifest import (
    NO_FILE,
    AssignedFile,
    Manifest,
    OperatorPart,
    SourceEntry,
    View,
    format_of,
    to_full,
)
from braided.store.history.manifest_log import ManifestLog
from braided.tasks.first_state import FirstState
from braided.tasks.outcome import MergedKeys, Outcome
from braided.tasks.reports import ChannelReport

__all__ = ["CONTROL", "Committer", "manifest_of"]


CONTROL = "control"
"""Where in a manifest the controller's memory is."""


class Committer:
    """Makes outcomes true, one after the other, as long as nobody else has the checkpoint."""

    def __init__(
        self,
        manifests: ManifestLog,
        lease: Lease,
        flow_id: str,
        location: str,
        full_every: int,
        source_log: SourceLog,
    ) -> None:
        self._source_log = source_log
        self._manifests = manifests
        self._lease = lease
        self._flow_id = flow_id
        self._location = location
        self._full_every = full_every

    def commit(
        self,
        outcome: Outcome,
        before: Version,
        offsets: str,
        memory: str | None,
        exposed: Mapping[Entry, str],
    ) -> Version:
        """Creates the manifest; `offsets` are those of the batch as Spark wrote them, `memory` is
        what the controller wants to be kept, `exposed` what sources have noted and others may
        replace.
        """
        self.check_lease()
        full, base = outcome.batch % self._full_every == 0, before.view
        if full:
            base = self._manifests.with_dead_listed(base, outcome.batch)
            base = base.with_sources(self._needed(base.sources))
        copies = self._manifests.copy_sources(outcome.batch, exposed)
        assigned = store_assigned(self._manifests, outcome.batch, outcome.tables, base)
        owner = self._lease.owner
        self._manifests.write(
            manifest_of(
                outcome, base, self._flow_id, owner, full, offsets, memory, copies, assigned
            )
        )
        view = self._manifests.view_at(outcome.batch, self._flow_id)
        history = before.history.noting(outcome.batch, outcome.tables)
        return Version(view, outcome.tables, outcome.watermark_ms, history)

    def _needed(self, copies: tuple[SourceEntry, ...]) -> tuple[SourceEntry, ...]:
        kept = {(copy.source, copy.entry) for copy in copies}
        needed = self._source_log.is_needed
        return tuple(copy for copy in copies if needed(copy.source, copy.entry, kept))

    def check_lease(self) -> None:
        """FencedError if this query has been replaced: it commits and publishes nothing more."""
        if not self._lease.held():
            raise fenced(self._lease, self._location)

    def committed(self, batch: int) -> Manifest:
        return self._manifests.read(batch)


def manifest_of(
    outcome: Outcome,
    view: View,
    flow: str,
    writer: str,
    full: bool,
    offsets: str = "",
    memory: str | None = None,
    sources: tuple[SourceEntry, ...] = (),
    assigned: Mapping[str, AssignedFile] | None = None,
) -> Manifest:
    """The manifest that makes an outcome true on top of a view; `assigned` are the files of keys
    whose assignment is another than the view's.
    """
    operators = {}
    # The flow was fitted to the checkpoint: what it lacks is dropped on purpose.
    dropped = tuple(sorted(view.operators.keys() - outcome.tables.keys()))
    carry = list(outcome.fed_back)
    for name, reports in outcome.reports.items():
        operators[name] = _part(name, outcome, view, reports, (assigned or {}).get(name))
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
        dead=(
            *(r.dead for rs in outcome.reports.values() for r in rs if r.dead is not None),
            *outcome.diverted,
        ),
        extra={} if memory is None else {CONTROL: memory},
        offsets=offsets,
        sources=sources,
        dropped=dropped,
        format=format_of(operators, dropped),
    )
    return to_full(view, delta) if full or view.batch < 0 else delta


def _part(
    name: str,
    outcome: Outcome,
    view: View,
    reports: list[ChannelReport],
    assigned: AssignedFile | None,
) -> OperatorPart:
    before = view.operators.get(name)
    table = outcome.tables[name]
    was = (NO_FILE if before is None else before.assigned).digest
    if table.assigned.digest != (was if assigned is None else assigned.digest):
        raise ValueError(f"the keys that operator {name} has assigned are not written")
    changed = before is None or before.epoch != table.epoch
    stored = stored_table(table) if changed else None
    snaps = [report.snap for report in reports if report.snap is not None]
    logs = [report.log for report in reports if report.log is not None]
    # State that it starts with comes before all that the batch did to it.
    start = outcome.initial.get(name, FirstState())
    # What split keys came to follows from what tasks wrote, and replaces some of it.
    merged = outcome.merged.get(name)
    last = () if merged is None else (merged.run,)
    known = start.due if before is None else before.due
    keys, size = (start.keys, start.bytes) if before is None else (before.keys, before.bytes)
    grown: list[ChannelReport | MergedKeys] = [*reports, *filter(None, [merged])]
    due: dict[int, int | None] = {**start.due}
    for report in reports:
        # Slots may be many thousand, and have no timers most of the time.
        if report.has_timers or known:
            due |= {s.slot: s.due_ms for s in report.slots if s.due_ms != known.get(s.slot)}
    return OperatorPart(
        channels=table.channels,
        meta=outcome.metas[name] if before is None or before.meta != outcome.metas[name] else None,
        table=None if stored is None else stored.slots,
        epoch=table.epoch,
        runs=(*start.runs, *snaps, *logs, *last),
        new=len(start.runs) + len(snaps) + len(logs) + len(last),
        merged=len(last),
        due=due,
        keys=keys + sum(each.keys_added for each in grown),
        bytes=size + sum(each.bytes_added for each in grown),
        pins=None if stored is None else stored.pins,
        hosts=None if stored is None else stored.hosts,
        behind_ms=outcome.behind.get(name),
        carried_ms=outcome.carried.get(name),
        assigned=assigned,
    )
