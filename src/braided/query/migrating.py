"""Migrations of a running query: brings events to `migrate/machine.py`, does what it says.

The thread that asks for a migration drives it. The thread of the batches tells it when one begins
and ends, and waits at the begin of one while batches are paused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any

from braided.control.events import Event as LoggedEvent
from braided.control.events import Migrated
from braided.control.planned_change import PlannedChange
from braided.control.routing.table import Loads, RoutingTable
from braided.errors import MigrationError, QueryStoppedError, UnsupportedError
from braided.hosts.transition import Transition
from braided.migrate.machine import Machine, Phase
from braided.migrate.metrics import Commit, Metrics, Timeline
from braided.migrate.steps import (
    BatchBegan,
    BatchEnded,
    Confine,
    Cut,
    End,
    Event,
    Instruction,
    Kill,
    Move,
    Outcome,
    Pause,
    PausedLong,
    Prepare,
    Prepared,
    Request,
    Resume,
    Seen,
    StopAsked,
    Strategy,
    TimeUp,
)
from braided.query.cutting import Cutter
from braided.query.version import Version
from braided.spark.executors import Executor, cores_by_host
from braided.tasks.outcome import Outcome as BatchOutcome

__all__ = ["Migration", "Migrations"]

log = logging.getLogger("braided")

_LOOK_S = 0.1
_PAUSE_S = 10.0
"""How long batches wait for executors that are being made ready."""
_COMMITS_KEPT = 512
_RATE_S = 60.0
"""The rate of output before a migration is that of so many seconds."""

Tables = Mapping[str, RoutingTable]


class Migration:
    """A migration that was asked for: how it ended, and what it took.

    `metrics` goes on to be filled in after the end: whether output is stable shows a minute later.
    """

    def __init__(self, machine: Machine, timeline: Timeline) -> None:
        self._machine = machine
        self._timeline = timeline
        self.outcome: str | None = None
        """"done", "undone" or "stopped"; None while it goes on."""
        self.why = ""

    @property
    def strategy(self) -> str:
        return self._machine.strategy.value

    @property
    def phase(self) -> str:
        return self._machine.phase.value

    @property
    def metrics(self) -> Metrics:
        """The numbers of `braided.migrate.metrics`."""
        return self._timeline.metrics

    def show(self) -> dict[str, Any]:
        """For the progress."""
        return {"phase": self.phase, "outcome": self.outcome, "why": self.why} | asdict(
            self.metrics
        )

    def __repr__(self) -> str:
        return f"Migration({self.strategy}, {self.outcome or self.phase}, {self.metrics})"


class Migrations:
    """The migrations of a query, one at a time."""

    def __init__(
        self,
        transition: Transition | None,
        cutter: Cutter,
        ring: Callable[[], None],
        note: Callable[[LoggedEvent], None],
    ) -> None:
        """`ring` asks for a batch; `note` writes to the event log."""
        self._transition = transition
        self._cutter = cutter
        self._ring = ring
        self._note = note
        self._lock = threading.Condition()
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._commits: deque[Commit] = deque(maxlen=_COMMITS_KEPT)
        self._migration: Migration | None = None
        self._timeline: Timeline | None = None
        self._is_going = False
        self._is_paused = False
        self._paused_s = 0.0
        self._is_stopped = False
        self._running: Tables | None = None
        self._began_confined = False
        self._killed_hosts: frozenset[str] = frozenset()

    # -- the thread of the batches ---------------------------------------------------------

    def wait_for_turn(self, is_active: Callable[[], bool]) -> bool:
        """Waits until a batch may begin; False if the query is not active any more before that, as
        Spark, which stops it, waits for this thread.
        """
        with self._lock:
            while self._is_paused and not self._is_stopped:
                if not is_active():
                    return False
                self._lock.wait(_LOOK_S)
        return True

    def began(self, tables: Tables) -> None:
        """A batch begins, by these tables."""
        confined = self._is_confined(tables)
        with self._lock:
            self._running, self._began_confined = tables, confined
            if self._timeline is not None:
                self._timeline.batch_began(time.monotonic(), confined)
            if self._is_going:
                self._events.put(BatchBegan(confined))

    def ended(self, outcome: BatchOutcome, rows_out: int) -> dict[str, Any] | None:
        """A batch is published, and has given out so many rows; what the progress should show."""
        now_s, is_confined = time.monotonic(), self._is_confined(outcome.tables)
        with self._lock:
            # One that ran on hosts that stay, when channels were confined to them and others, has
            # not moved.
            confined = is_confined and self._began_confined
            self._running = None
            self._commits.append(Commit(now_s, rows_out))
            if self._timeline is None or self._migration is None:
                return None
            redone = self._rows_redone(outcome)
            self._timeline.batch_ended(now_s, confined, rows_out, outcome.rows_left, redone)
            if self._is_going:
                self._events.put(BatchEnded(confined))
            shown = self._migration.show()
            if self._timeline.is_whole and not self._is_going:
                self._timeline = None
                self._note(_logged(outcome.batch, self._migration))
            return shown

    def stop(self) -> None:
        """The query is being stopped: a migration ends where it is, and nothing waits for it."""
        with self._lock:
            self._is_stopped = True
            self._events.put(StopAsked())
            self._lock.notify_all()

    def _is_confined(self, tables: Tables) -> bool:
        return self._transition is not None and self._transition.is_confined(tables)

    def _rows_redone(self, outcome: BatchOutcome) -> int:
        """Rows of channels that were to run on hosts that were killed, and ran elsewhere."""
        killed, self._killed_hosts = self._killed_hosts, frozenset()
        if not killed or self._transition is None:
            return 0
        rows = 0
        for name, reports in outcome.reports.items():
            hosts = outcome.tables[name].hosts
            for report in reports:
                planned = hosts[report.channel] if hosts else ""
                ran_on = self._transition.hosts.host_of(report.executor)
                rows += report.rows_in if planned in killed and ran_on not in killed else 0
        return rows

    # -- the thread that asks --------------------------------------------------------------

    def migrate(
        self,
        strategy: Strategy,
        executors: int | Sequence[str] | None,
        timeout_s: float,
        version: Callable[[], Version],
    ) -> Migration:
        """Runs a migration to its end. `version`: what is true between two batches."""
        transition = self.transition
        seen = transition.look()
        move = self._move_to(executors, seen)
        with self._lock:
            if self._is_stopped:
                raise QueryStoppedError("migrate: the query is being stopped")
            if self._is_going:
                raise MigrationError(
                    "another migration of this query is going on; wait until it has ended"
                )
            self._is_going = transition.is_migrating = True
            self._events = SimpleQueue()
            there = Seen({executor.id: executor.host for executor in seen})
            machine = Machine(strategy, move, there, self._running is not None)
            asked_s = time.monotonic()
            recent = [each for each in self._commits if each.at_s >= asked_s - _RATE_S]
            timeline = Timeline(strategy, asked_s, recent)
            migration = Migration(machine, timeline)
            self._migration, self._timeline = migration, timeline
        try:
            end = self._drive(machine, timeline, asked_s + timeout_s, version)
            migration.outcome, migration.why = end.outcome.value, end.why
        finally:
            # Nobody is there any more who would take channels back.
            transition.confine(None)
            with self._lock:
                self._is_going = self._is_paused = transition.is_migrating = False
                self._lock.notify_all()
        if end.outcome is not Outcome.STOPPED:  # then the log is somebody else's
            self._note(_logged(version().batch, migration))
        level = logging.INFO if end.outcome is Outcome.DONE else logging.WARNING
        log.log(level, "migration by %s is %s %s", strategy.value, end.outcome.value, end.why)
        return migration

    def plan(
        self,
        executors: int | Sequence[str] | None,
        version: Version,
        loads: Mapping[str, Loads],
    ) -> PlannedChange:
        """What a migration would move. Executors that would come are counted as being on hosts
        that nobody knows yet, unless they are named.
        """
        seen = self.transition.look()
        move = self._move_to(executors, seen)
        cores = cores_by_host(executor for executor in seen if executor.id in move.stay)
        missing = sorted((move.hosts or frozenset()) - cores.keys())
        names = missing or [f"new executor {n}" for n in range(1, move.come + 1)]
        each = min((executor.cores for executor in seen), default=1)
        return self.transition.plan_on(cores | dict.fromkeys(names, each), version.tables, loads)

    @property
    def transition(self) -> Transition:
        """What moves channels; refused where there is nothing to move them to."""
        if self._transition is None:
            raise UnsupportedError(
                "migrate moves a query to other executors, and there are none on this master (or "
                "channels can't be placed on them): run on a cluster, without "
                "braided.placement=off"
            )
        return self._transition

    def _move_to(self, executors: int | Sequence[str] | None, seen: Sequence[Executor]) -> Move:
        move = move_to(executors, seen, self.transition.weights())
        total, most = len(move.stay) + move.come, self.transition.executors_most
        if most is not None and total > most:
            raise MigrationError(
                f"a migration to {total} executors, where braided.cluster.maxExecutors is {most}: "
                "name fewer, or start the query with more"
            )
        return move

    def _drive(
        self,
        machine: Machine,
        timeline: Timeline,
        deadline_s: float,
        version: Callable[[], Version],
    ) -> End:
        """To its end, which is returned."""
        instructions = machine.begin()
        while True:
            end = self._carry_out(instructions, timeline, deadline_s, version)
            if end is not None:
                return end
            if machine.phase is Phase.ENDING and machine.strategy is Strategy.CCR:
                self._cut()  # the batch may not have begun its tasks before
            try:
                event: Event = self._events.get(timeout=_LOOK_S)
            except Empty:
                event = self._look(deadline_s)
            instructions = machine.on(event)

    def _cut(self) -> None:
        self._cutter.cut("the query migrates", rebalances=False)

    def _look(self, deadline_s: float) -> Event:
        if time.monotonic() >= deadline_s:
            return TimeUp()
        if self._is_paused and time.monotonic() - self._paused_s > _PAUSE_S:
            self._paused_s = time.monotonic()  # said now; others must see executors, too
            return PausedLong()
        return Seen({executor.id: executor.host for executor in self.transition.look()})

    def _carry_out(
        self,
        instructions: Sequence[Instruction],
        timeline: Timeline,
        deadline_s: float,
        version: Callable[[], Version],
    ) -> End | None:
        """Does what it is told; the end, if that is part of it."""
        transition = self.transition
        for instruction in instructions:
            log.debug("migration: %s", instruction)
            if isinstance(instruction, Request):
                transition.request(instruction.total)
            elif isinstance(instruction, Kill):
                self._kill(instruction.executors)
            elif isinstance(instruction, Prepare):
                left_s = max(0.0, deadline_s - time.monotonic())
                # Meanwhile the running batch may have to be ended, or all be called off.
                threading.Thread(
                    target=self._prepare,
                    args=(instruction.executors, version(), left_s, timeline, self._events),
                    name="braided prepares",
                    daemon=True,
                ).start()
            elif isinstance(instruction, Pause):
                with self._lock:
                    self._is_paused = True
                    self._paused_s = time.monotonic()
                    timeline.paused(time.monotonic(), self._running is not None)
            elif isinstance(instruction, Resume):
                with self._lock:
                    self._is_paused = False
                    self._lock.notify_all()
            elif isinstance(instruction, Cut):
                self._cut()
            elif isinstance(instruction, Confine):
                transition.confine(instruction.executors)
                self._ring()
            else:
                return instruction
        return None

    def _kill(self, executors: frozenset[str]) -> None:
        hosts = self.transition.hosts
        with self._lock:
            if self._running is not None:
                self._killed_hosts = frozenset(map(hosts.host_of, executors))
        self.transition.release(executors)

    def _prepare(
        self,
        executors: frozenset[str],
        version: Version,
        timeout_s: float,
        timeline: Timeline,
        events: SimpleQueue[Event],
    ) -> None:
        """Tells which of the executors can run channels; those that can't are named in the log."""
        fit: frozenset[str] = frozenset()
        try:
            fit = self.transition.prepare(executors, version.tables, version.view, timeout_s)
        except Exception as error:
            log.warning("new executors are not prepared: %s", str(error).split("\n", 1)[0])
        with self._lock:
            timeline.prepared(time.monotonic())
        events.put(Prepared(fit, executors - fit))


def move_to(
    executors: int | Sequence[str] | None,
    seen: Sequence[Executor],
    weights: Mapping[str, float],
) -> Move:
    """Who stays, who leaves and how many come. `weights`: how much state each host has.

    A number: so many executors, and those that have most of the state stay. Hosts: one on each.
    None: as many as there are, all of them others.
    """
    ids = frozenset(executor.id for executor in seen)
    if executors is None:
        return Move(frozenset(), ids, len(ids))
    if isinstance(executors, int):
        if isinstance(executors, bool) or executors < 1:
            raise ValueError(f"migrate takes at least 1 executor, not {executors!r}")
        by_weight = sorted(seen, key=lambda each: -weights.get(each.host, 0.0))
        stay = frozenset(executor.id for executor in by_weight[:executors])
        return Move(stay, ids - stay, max(0, executors - len(ids)))
    hosts = frozenset(() if isinstance(executors, str) else executors)
    if not hosts or not all(isinstance(host, str) and host for host in hosts):
        raise ValueError(f"migrate takes the names of hosts, not {executors!r}")
    first: dict[str, str] = {}
    for executor in seen:
        if executor.host in hosts:
            first.setdefault(executor.host, executor.id)
    stay = frozenset(first.values())
    return Move(stay, ids - stay, len(hosts - first.keys()), hosts)


def _logged(batch: int, migration: Migration) -> Migrated:
    metrics = migration.metrics
    return Migrated(
        batch=batch,
        strategy=migration.strategy,
        outcome=migration.outcome or "",
        why=migration.why,
        metrics={name: value for name, value in asdict(metrics).items() if name != "strategy"},
    )
