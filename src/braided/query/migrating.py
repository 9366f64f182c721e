"""Migrations of a running query: brings events to `migrate/machine.py`, does what it says.

The thread that asks for a migration drives it. The thread of the batches tells it when one begins
and ends, and waits at the begin of one while batches are paused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from braided.control.events import Event as LoggedEvent
from braided.control.events import Migrated
from braided.control.planned_change import PlannedChange
from braided.control.routing.table import Loads, RoutingTable
from braided.errors import MigrationError, QueryStoppedError, UnsupportedError
from braided.hosts.transition import Transition
from braided.migrate.machine import Machine, Phase
from braided.migrate.metrics import Commit, Metrics, MigrationTimeline, RecentCommits
from braided.migrate.steps import (
    BatchBegan,
    BatchEnded,
    CarryFirst,
    Confine,
    CutBatch,
    End,
    Event,
    ExecutorMove,
    ExecutorsReady,
    Instruction,
    Kill,
    MigrationOutcome,
    PauseBatches,
    PausedLong,
    Prepare,
    Request,
    Resume,
    Seen,
    StepFailed,
    StopAsked,
    Strategy,
    TimeUp,
)
from braided.query.cutting import Cutter
from braided.query.version import Version
from braided.spark.executors import Executor, cores_by_host
from braided.tasks.outcome import Outcome

__all__ = ["Migration", "Migrations"]

log = logging.getLogger("braided")

_LOOK_S = 0.1
_PAUSE_S = 10.0
"""How long batches wait for executors that are being made ready."""

Tables = Mapping[str, RoutingTable]


class Migration:
    """A migration that was asked for: how it ended, and what it took.

    `metrics` goes on to be filled in after the end: whether output is stable shows a minute later.
    """

    def __init__(self, machine: Machine, timeline: MigrationTimeline) -> None:
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
    def is_by_killing(self) -> bool:
        """Whether the running batch is done again on the new executors (DSM), unless the migration
        was undone.
        """
        is_off = self.outcome not in (None, MigrationOutcome.DONE.value)
        return self._machine.strategy is Strategy.DSM and not is_off

    @property
    def destination(self) -> frozenset[str]:
        """The executors that it goes to, as far as they are there."""
        return self._machine.destination

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


@dataclass(frozen=True)
class _Hit:
    """What a kill did to the batch that was running."""

    hosts: frozenset[str]
    """Those that executors were killed on."""
    others: frozenset[str]
    """The executors there that did nothing again for it: those that were killed, and any beside
    them, whose channels may have been theirs before.
    """


class Migrations:
    """The migrations of a query, one at a time."""

    def __init__(
        self,
        transition: Transition | None,
        cutter: Cutter,
        ring: Callable[[], None],
        hold_input: Callable[[], None],
        note: Callable[[LoggedEvent], None],
    ) -> None:
        """`ring` asks for a batch; `hold_input` has the next one leave its input for the one after
        it; `note` writes to the event log.
        """
        self._transition = transition
        self._cutter = cutter
        self._ring = ring
        self._hold_input = hold_input
        self._note = note
        self._lock = threading.Condition()
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._commits = RecentCommits()
        self._migration: Migration | None = None
        self._timeline: MigrationTimeline | None = None
        self._is_going = False
        self._is_paused = False
        self._paused_s = 0.0
        self._is_stopped = False
        self._is_running = False
        self._began_confined = False
        self._hit: _Hit | None = None

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
            # From here on it is in flight: who migrates meanwhile waits for its end.
            self._is_running = True
        return True

    def began(self, tables: Tables) -> None:
        """A batch begins, by these tables."""
        confined = self._is_confined(tables)
        with self._lock:
            self._began_confined = confined
            if self._timeline is not None:
                self._timeline.batch_began(time.monotonic(), confined)
            if self._is_going:
                self._events.put(BatchBegan(confined))

    def ended(self, outcome: Outcome, rows_out: int) -> dict[str, Any] | None:
        """A batch is published, and has given out so many rows; what the progress should show."""
        now_s, is_confined = time.monotonic(), self._is_confined(outcome.tables)
        with self._lock:
            hit, self._hit, self._is_running = self._hit, None, False
            self._commits.add(Commit(now_s, rows_out))
            if self._timeline is None or self._migration is None:
                return None
            # One that ran on hosts that stay, when channels were confined to them and others, has
            # not moved; one that was done again because executors were killed may have.
            moved = is_confined and self._began_confined
            if hit is not None and self._migration.is_by_killing:
                moved = moved or _ran_on(outcome, self._migration.destination)
            redone = 0 if hit is None else _rows_redone(outcome, hit)
            self._timeline.batch_ended(now_s, moved, rows_out, outcome.rows_left, redone)
            if self._is_going:
                self._events.put(BatchEnded(moved))
            shown = self._migration.show()
            if not self._is_going:
                self._show_no_more(outcome.batch, self._migration, self._timeline)
            return shown

    def _show_no_more(self, batch: int, migration: Migration, timeline: MigrationTimeline) -> None:
        """Lets go of a migration that has ended, once there is nothing more to find out."""
        if migration.outcome != MigrationOutcome.DONE.value:
            self._timeline = None  # all there is to say was logged when it ended
        elif timeline.is_whole:
            self._timeline = None
            self._note(_logged(batch, migration))

    def stop(self) -> None:
        """The query is being stopped: a migration ends where it is, and nothing waits for it."""
        with self._lock:
            self._is_stopped = True
            self._events.put(StopAsked())
            self._lock.notify_all()

    def _is_confined(self, tables: Tables) -> bool:
        return self._transition is not None and self._transition.is_confined(tables)

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
        move = self._move_to(strategy, executors, seen)
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
            machine = Machine(strategy, move, there, self._is_running)
            asked_s = time.monotonic()
            timeline = MigrationTimeline(strategy, asked_s, self._commits.until(asked_s))
            migration = Migration(machine, timeline)
            self._migration, self._timeline = migration, timeline
        deadline_s = asked_s + timeout_s
        try:
            end = self._drive(machine, timeline, deadline_s, version)
        except BaseException as error:
            self._conclude(migration, self._give_up(machine, timeline, error, version), version)
            raise
        self._conclude(migration, end, version)
        return migration

    def _conclude(self, migration: Migration, end: End, version: Callable[[], Version]) -> None:
        """Lets batches and channels go on by themselves, and says how it ended."""
        migration.outcome, migration.why = end.outcome.value, end.why
        # Nobody is there any more who would take channels back.
        self.transition.confine(None)
        with self._lock:
            self._is_going = self._is_paused = self.transition.is_migrating = False
            self._lock.notify_all()
        if end.outcome is not MigrationOutcome.STOPPED:  # then the log is somebody else's
            self._note(_logged(version().batch, migration))
        level = logging.INFO if end.outcome is MigrationOutcome.DONE else logging.WARNING
        log.log(level, "migration by %s is %s %s", migration.strategy, migration.outcome, end.why)

    def _give_up(
        self,
        machine: Machine,
        timeline: MigrationTimeline,
        error: BaseException,
        version: Callable[[], Version],
    ) -> End:
        """Takes back what can be, after an error; how it ended."""
        said = str(error).split("\n", 1)[0]
        why = f"{type(error).__name__}: {said}" if said else type(error).__name__
        end = End(MigrationOutcome.UNDONE, why)
        for instruction in machine.on(StepFailed(why)):
            try:
                end = self._carry_out([instruction], timeline, time.monotonic(), version) or end
            except BaseException as another:  # the first one is what is raised
                log.warning("migration: %s failed, too: %s", instruction, another)
        return end

    def plan(
        self,
        strategy: Strategy,
        executors: int | Sequence[str] | None,
        version: Version,
        loads: Mapping[str, Loads],
    ) -> PlannedChange:
        """What a migration would move. Executors that would come are counted as being on hosts
        that nobody knows yet, unless they are named.
        """
        seen = self.transition.look()
        move = self._move_to(strategy, executors, seen)
        cores = cores_by_host(executor for executor in seen if executor.id in move.stay)
        missing = sorted((move.hosts or frozenset()) - cores.keys())
        names = missing or [f"new executor {n}" for n in range(1, move.come + 1)]
        each = min((executor.cores for executor in seen), default=1)
        where = cores | dict.fromkeys(names, each)
        planned = self.transition.plan_on(where, version.tables, loads)
        # Whatever `braided.prefetch` says: it is for batches that go on.
        return replace(
            planned,
            is_prefetched=strategy is Strategy.DCR,
            is_paused_for=strategy is Strategy.CCR,
        )

    @property
    def transition(self) -> Transition:
        """What moves channels; refused where there is nothing to move them to."""
        if self._transition is None:
            raise UnsupportedError(
                "migrate moves a query to other executors, and there are none on this master (or "
                "channels can't be placed on them): run on a cluster, without "
                "braided.placement=off"
            )
        if self._transition.grows_itself:
            raise UnsupportedError(
                "migrate asks Spark for executors and gives others back, and Spark's own dynamic "
                "allocation would undo it: set spark.dynamicAllocation.enabled=false"
            )
        return self._transition

    def _move_to(
        self,
        strategy: Strategy,
        executors: int | Sequence[str] | None,
        seen: Sequence[Executor],
    ) -> ExecutorMove:
        move = move_to(executors, seen, self.transition.weights())
        total, most = len(move.stay) + move.come, self.transition.executors_most
        if most is not None and total > most:
            raise MigrationError(
                f"a migration to {total} executors, where braided.cluster.maxExecutors is {most}: "
                "name fewer, or start the query with more"
            )
        meanwhile = len(seen) + move.come
        if most is not None and strategy is not Strategy.DSM and meanwhile > most:
            raise MigrationError(
                f"a migration by {strategy.value} to {total} executors needs {meanwhile} for a "
                "while, as those that leave go when the others have taken over, and "
                f"braided.cluster.maxExecutors is {most}: use 'dsm', which lets them go first, or "
                "start the query with more"
            )
        return move

    def _drive(
        self,
        machine: Machine,
        timeline: MigrationTimeline,
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
        timeline: MigrationTimeline,
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
                self._kill(instruction, timeline)
            elif isinstance(instruction, Prepare):
                left_s = max(0.0, deadline_s - time.monotonic())
                # Meanwhile the running batch may have to be ended, or all be called off.
                threading.Thread(
                    target=self._prepare,
                    args=(instruction.executors, version(), left_s, timeline, self._events),
                    name="braided prepares",
                    daemon=True,
                ).start()
            elif isinstance(instruction, PauseBatches):
                with self._lock:
                    self._is_paused = True
                    self._paused_s = time.monotonic()
                    timeline.paused(time.monotonic(), self._is_running)
            elif isinstance(instruction, Resume):
                with self._lock:
                    self._is_paused = False
                    self._lock.notify_all()
            elif isinstance(instruction, CutBatch):
                self._cut()
            elif isinstance(instruction, Confine):
                transition.confine(instruction.executors)
                self._ring()
            elif isinstance(instruction, CarryFirst):
                if self._cutter.address is not None:  # or nothing was captured
                    self._hold_input()
            else:
                return instruction
        return None

    def _kill(self, kill: Kill, timeline: MigrationTimeline) -> None:
        transition = self.transition
        hosts = frozenset(map(transition.hosts.host_of, kill.executors))
        beside = {executor.id for executor in transition.look() if executor.host in hosts}
        with self._lock:
            timeline.killed(time.monotonic(), self._is_running)
            if self._is_running:
                self._hit = _Hit(hosts, kill.executors | beside)
        transition.release(kill.executors, kill.total)

    def _prepare(
        self,
        executors: frozenset[str],
        version: Version,
        timeout_s: float,
        timeline: MigrationTimeline,
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
        events.put(ExecutorsReady(fit, executors - fit))


def move_to(
    executors: int | Sequence[str] | None,
    seen: Sequence[Executor],
    weights: Mapping[str, float],
) -> ExecutorMove:
    """Who stays, who leaves and how many come. `weights`: how much state each host has.

    A number: so many executors, and those that have most of the state stay. Hosts: one on each.
    None: as many as there are, all of them others.
    """
    ids = frozenset(executor.id for executor in seen)
    if executors is None:
        return ExecutorMove(frozenset(), ids, len(ids))
    if isinstance(executors, int):
        if isinstance(executors, bool) or executors < 1:
            raise ValueError(f"migrate takes at least 1 executor, not {executors!r}")
        by_weight = sorted(seen, key=lambda each: -weights.get(each.host, 0.0))
        stay = frozenset(executor.id for executor in by_weight[:executors])
        return ExecutorMove(stay, ids - stay, max(0, executors - len(ids)))
    hosts = frozenset(() if isinstance(executors, str) else executors)
    if not hosts or not all(isinstance(host, str) and host for host in hosts):
        raise ValueError(f"migrate takes the names of hosts, not {executors!r}")
    first: dict[str, str] = {}
    for executor in seen:
        if executor.host in hosts:
            first.setdefault(executor.host, executor.id)
    stay = frozenset(first.values())
    return ExecutorMove(stay, ids - stay, len(hosts - first.keys()), hosts)


def _ran_on(outcome: Outcome, executors: frozenset[str]) -> bool:
    """Whether all channels ran on these, as their reports say."""
    ran_on = {report.executor for each in outcome.reports.values() for report in each}
    return bool(ran_on) and ran_on <= executors


def _rows_redone(outcome: Outcome, hit: _Hit) -> int:
    """Rows of channels that were to run where executors were killed, and ran on others."""
    rows = 0
    for name, reports in outcome.reports.items():
        hosts = outcome.tables[name].hosts
        for report in reports:
            planned = hosts[report.channel] if hosts else ""
            is_again = planned in hit.hosts and report.executor not in hit.others
            rows += report.rows_in if is_again else 0
    return rows


def _logged(batch: int, migration: Migration) -> Migrated:
    metrics = migration.metrics
    return Migrated(
        batch=batch,
        strategy=migration.strategy,
        outcome=migration.outcome or "",
        why=migration.why,
        metrics={name: value for name, value in asdict(metrics).items() if name != "strategy"},
    )
