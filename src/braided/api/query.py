"""`ElasticQuery`: a running query. All of Spark's StreamingQuery, and what Braided adds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, overload

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from braided.control.planned_change import PlannedChange
from braided.control.routing.command import Command
from braided.control.routing.history import Routing
from braided.errors import FencedError, MigrationError, QueryStoppedError
from braided.migrate.steps import Strategy
from braided.query.migrating import Migration
from braided.query.opening import OpenQuery
from braided.spark.query_handle import begin_with, call_at_end

log = logging.getLogger("braided")

__all__ = ["ElasticQuery"]

T = TypeVar("T")

# Interrupted while it writes down that a batch is done, Spark would run the batch again; while it
# writes down the first batch's offsets, it would refuse the checkpoint from then on.
_SILENT_S = 2.0
"""How long `stop()` waits before it says so."""
_RECORD_S = 10.0

# The query on each checkpoint, until it has ended, also when the user keeps no reference to it.
_running: dict[str, ElasticQuery] = {}
_registering = threading.Lock()


def retire(location: str) -> None:
    """Lets go of a checkpoint whose query in this process has ended just now."""
    query = _running.get(location)
    if query is not None and not query._query.isActive:
        query._end()


class ElasticQuery:
    """A query that can be rescaled and rebalanced while it runs."""

    def __init__(self, query: StreamingQuery, opened: OpenQuery) -> None:
        self._query = query
        self._opened = opened
        self._engine = opened.engine
        # One that is idle would plan the next batch beside the query that has taken over.
        self._engine.call_when_fenced(self.stop)
        with _registering:
            _running[opened.location] = self
        call_at_end(query, self._end)

    # -- as Spark's StreamingQuery ---------------------------------------------------------

    @property
    def id(self) -> str:
        return self._query.id

    @property
    def runId(self) -> str:
        return self._query.runId

    @property
    def name(self) -> str | None:
        return self._query.name

    @property
    def isActive(self) -> bool:
        active = self._query.isActive
        if not active:
            self._end()  # who sees that it has ended may count on a free checkpoint
        return active

    @property
    def status(self) -> dict[str, Any]:
        return self._query.status

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Spark's progress of the newest batches, each with a "braided" section."""
        return [self._with_section(progress) for progress in self._query.recentProgress]

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """Spark's progress of the newest batch, with a "braided" section."""
        progress = self._query.lastProgress
        if progress is None:
            return None
        progress = self._with_section(progress)
        if "braided" in progress and self.isActive and (pending := self.pending()).is_change:
            progress["braided"] = {**progress["braided"], "pending": str(pending)}
        return progress

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        try:
            ended = self._explained(lambda: self._query.awaitTermination(timeout))
        except StreamingQueryException:
            self._end()
            raise
        if ended is not False:
            self._end()
            self._raise_if_fenced()
        return ended

    def processAllAvailable(self) -> None:
        self._explained(self._query.processAllAvailable)
        self._raise_if_fenced()

    def explain(self, extended: bool = False) -> None:
        """Prints the flow, with the channels and slots of each operator, and Spark's plan of the
        newest batch for each sink; `extended` with the logical plans, as Spark does.
        """
        self._engine.explain(extended)

    def exception(self) -> StreamingQueryException | None:
        error = self._query.exception()
        if error is not None:
            begin_with(error, self._engine.why(str(error)), self._query)
            return error
        fenced = self._engine.error
        if not isinstance(fenced, FencedError) or self._query.isActive:
            return None
        # It was idle when it was taken over from: Spark knows only that it was stopped.
        error = StreamingQueryException(str(fenced))
        error.__cause__ = fenced
        return error

    def stop(self) -> None:
        """Stops the query between two batches.

        Waits for the running batch, at most `braided.stopTimeout`; one that takes longer is cut
        off, not committed, and runs again at the next start. Called by the running batch, in a
        foreachBatch function, it returns at once: the query ends when that batch is done.
        """
        gate = self._engine.gate
        if gate.inside():
            gate.stopping = True  # no batch begins, however late the thread comes
            threading.Thread(target=self.stop, name="braided stop", daemon=True).start()
            return
        self._opened.migrations.stop()
        try:
            if self._shut():
                self._wait_while(self._is_writing, _RECORD_S)
        finally:
            # Also when the waiting is interrupted: a query that was told to stop must not hang.
            self._query.stop()
            self._end()

    def _shut(self) -> bool:
        """Whether the running batch has ended; who waits for long is told for what."""
        gate, most_s = self._engine.gate, self._opened.stop_timeout_s
        silent_s = min(_SILENT_S, most_s)
        running = gate.shut(silent_s)
        if running is None:
            return True
        log.warning("stop: waiting for batch %d, at most %g s", running, most_s)
        if gate.shut(most_s - silent_s) is None:
            return True
        log.warning("stop: batch %d is cut off, and runs again at the next start", running)
        return False

    def _end(self) -> None:
        """Lets go of what the query had, which has ended, however it did. Again is fine."""
        self._opened.close()
        with _registering:
            if _running.get(self._opened.location) is self:
                del _running[self._opened.location]

    def _is_writing(self) -> bool:
        """Whether Spark may be at its own logs: between two batches, and neither idle
        nor held up.
        """
        return not self._engine.gate.parked and bool(self.status["isTriggerActive"])

    def _wait_while(self, unready: Callable[[], bool], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while self.isActive and unready() and time.monotonic() < end:
            time.sleep(0.01)

    # -- what Braided adds -----------------------------------------------------------------

    @overload
    def rescale(
        self, channels: int, operator: str | None = None, dry_run: Literal[False] = False
    ) -> None: ...

    @overload
    def rescale(
        self, channels: int, operator: str | None = None, *, dry_run: Literal[True]
    ) -> PlannedChange: ...

    def rescale(
        self, channels: int, operator: str | None = None, dry_run: bool = False
    ) -> PlannedChange | None:
        """Runs an operator (all of them, if none is named) on that many channels, from
        the next batch on; on a cluster from when the state is where it is needed, and the executors
        are there. A query that ends before leaves its channels as they are.

        With `dry_run` nothing changes, and what would is returned: which slots would move, how
        much state to another host and for how long a batch would wait for it, how even the load
        would be; after what was asked for before and is not yet in effect. `print` shows it.
        """
        self._need_active("rescale")
        return self._command(self._opened.commands.to_rescale(channels, operator), dry_run)

    @overload
    def rebalance(self, operator: str | None = None, dry_run: Literal[False] = False) -> None: ...

    @overload
    def rebalance(
        self, operator: str | None = None, *, dry_run: Literal[True]
    ) -> PlannedChange: ...

    def rebalance(self, operator: str | None = None, dry_run: bool = False) -> PlannedChange | None:
        """Moves slots from busy channels to idle ones, by measured time, from the next batch on.

        With `dry_run` it only says which, as for `rescale`.
        """
        self._need_active("rebalance")
        return self._command(self._opened.commands.to_rebalance(operator), dry_run)

    @overload
    def revert(self, steps: int = 1, dry_run: Literal[False] = False) -> None: ...

    @overload
    def revert(self, steps: int = 1, *, dry_run: Literal[True]) -> PlannedChange: ...

    def revert(self, steps: int = 1, dry_run: bool = False) -> PlannedChange | None:
        """Goes back along `routing().history`: from the next batch on, slots have the channels
        again that they had so many steps before the tables that are in effect now. As with
        `rescale`, on a cluster from when the state is there. NoEarlierTableError if nothing is
        known from so long ago.

        The tables of all operators go back together. A step is a change of slots or channels, of
        anybody's: yours, the controller's, or a revert, so that the next revert takes this one
        back. Changes of hosts and of pins are none. Keys that are pinned now stay in their slots,
        also if they were not pinned then; and what Spark has for executors is as it is now.

        With `dry_run` it only says what would change, as for `rescale`.
        """
        self._need_active("revert")
        history = self._engine.version.history
        return self._command(self._opened.commands.to_revert(history, steps), dry_run)

    def pending(self) -> PlannedChange:
        """What was asked for and is not in effect yet: a command takes effect with the next batch,
        and on a cluster when the state is there. `print` shows it; `is_change` is False where
        nothing waits. What a controller is about to propose is no part of it.
        """
        return self._opened.dry_runs.of(Command({}))

    def _command(self, command: Command, dry_run: bool) -> PlannedChange | None:
        if dry_run:
            return self._opened.dry_runs.of(command)
        in_use = max(table.channels for table in self._engine.version.tables.values())
        self._opened.reserve.warm(command.channels, in_use)
        self._opened.commands.ask(command)
        return None

    def cut(self) -> bool:
        """Ends the running batch early; False if none is running.

        Its tasks stop where they are, between two rows or keys. What they have done is committed
        and published, and what they have not is the first thing that the next batch does, by a
        table in which busy channels have handed slots to idle ones. A task that does not hear of
        it, and one that aggregates, does all its rows. False, too, with `braided.orderPreserving`
        and with a trigger that ends the query, where nothing can be left for later.
        """
        self._need_active("cut")
        return self._opened.cutter.cut("query.cut() was called")

    @overload
    def migrate(
        self,
        strategy: str = "ccr",
        executors: int | Sequence[str] | None = None,
        timeout: float = 300.0,
        dry_run: Literal[False] = False,
    ) -> Migration: ...

    @overload
    def migrate(
        self,
        strategy: str = "ccr",
        executors: int | Sequence[str] | None = None,
        timeout: float = 300.0,
        *,
        dry_run: Literal[True],
    ) -> PlannedChange: ...

    def migrate(
        self,
        strategy: str = "ccr",
        executors: int | Sequence[str] | None = None,
        timeout: float = 300.0,
        dry_run: bool = False,
    ) -> Migration | PlannedChange:
        """Moves the query to other executors of Spark's, and returns when it runs there.

        `executors` is how many it should have: with fewer than now, those with most of the state
        stay; with more, others come. A list of hosts: one on each of them. None: as many as now,
        all of them new.

        `strategy` is what becomes of the batch that is running:

        - "dsm": executors that leave are killed at once, and what they were doing is done again;
        - "dcr": when the new ones are ready, the running batch is finished, and the next one begins
          there;
        - "ccr": when the new ones are there, the running batch is ended early (see `cut`) while
          they are made ready, and what is left of it comes first in the next one, there.

        Nothing is lost or doubled by any of them. If it fails, or is not done after `timeout`
        seconds, it is undone: channels go back, and executors that came leave again. What is
        returned says how it ended, and what it took. With `dry_run` it only says what would move
        and how long batches would wait for state, as for `rescale`.
        """
        self._need_active("migrate")
        try:
            chosen = Strategy(strategy)
        except ValueError:
            names = ", ".join(repr(each.value) for each in Strategy)
            raise ValueError(f"migrate knows the strategies {names}, not {strategy!r}") from None
        if self._engine.gate.inside():
            raise MigrationError(
                "migrate was called by the running batch, in a foreachBatch function, and would "
                "wait for that batch to end; call it from another thread"
            )
        migrations = self._opened.migrations
        if dry_run:
            loads = self._opened.dry_runs.loads()
            return migrations.plan(chosen, executors, self._engine.version, loads)
        return migrations.migrate(chosen, executors, timeout, lambda: self._engine.version)

    def _need_active(self, what: str) -> None:
        if not self.isActive:
            raise QueryStoppedError(
                f"{what}: the query has stopped, so no batch would follow it. Start it again; it "
                "goes on with the channels that it had"
            )

    def routing(self) -> Routing:
        """The routing table in effect, by operator; its `history` has those before it."""
        version = self._engine.version
        return Routing(version.tables, version.history)

    def _with_section(self, progress: StreamingQueryProgress) -> StreamingQueryProgress:
        log, batch = self._engine.progress, progress.batchId
        # Spark also reports that it looked for input in vain, under the number of the next batch.
        content = log.get(batch) if "addBatch" in progress.durationMs else log.idle(batch)
        if content is not None:
            progress["braided"] = content
        return progress

    def _explained(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except StreamingQueryException as error:
            own = self._engine.why(str(error))
            begin_with(error, own, self._query)
            if own is None:
                raise
            # Without the way through py4j: a script that ends with it shows this error last.
            raise error.with_traceback(None) from own

    def _raise_if_fenced(self) -> None:
        error = None if self._query.isActive else self.exception()
        if error is not None:
            raise error
