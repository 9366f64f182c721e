"""One micro-batch, top to bottom: admit, process, commit, publish, and what comes between batches.

`Engine.run` is what Spark calls for every batch. Everything before `commit` can happen any number
of times without anybody seeing it; everything after it is finished by the next start if it is cut
short.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from braided import failpoints
from braided.errors import (
    BatchError,
    BraidedError,
    CheckpointMismatchError,
    FencedError,
    PublishError,
)
from braided.flow.graph import Flow
from braided.hosts.transition import Transition
from braided.query.admission import Admission
from braided.query.between_batches import BetweenBatches
from braided.query.commit import Committer
from braided.query.figures import Figures
from braided.query.flow_text import flow_text
from braided.query.gate import Gate, Stopped
from braided.query.losing import explain_concurrent, fenced, refuse_replaced
from braided.query.migrating import Migrations
from braided.query.outputs import Outputs
from braided.query.processing import Processing
from braided.query.progress import ProgressLog, StepTimes
from braided.query.version import Version
from braided.spark.query_handle import QueryHandle
from braided.spark.reasons import is_of_spark, reason
from braided.spark.session_settings import configure
from braided.spark.tick import Bell
from braided.steering.control_thread import ControlThread
from braided.store.durable.lease import Lease
from braided.tasks.failure import from_worker, is_interrupt

__all__ = ["BatchSteps", "Engine"]

_QUERY_S = 10.0
"""How long the first batch waits for the query that it is of, which Spark has started by then."""
_TABLE = re.compile(r"\[(\d+,){8,}\d+\]")
"""A routing table in Spark's plan: a number for each slot, hundreds of them."""


@dataclass(frozen=True)
class BatchSteps:
    """The steps of a batch, in their order."""

    admission: Admission
    processing: Processing
    committer: Committer
    outputs: Outputs
    between: BetweenBatches


class Engine:
    """Runs the batches of one query."""

    def __init__(
        self,
        location: str,
        flow: Flow,
        version: Version,
        steps: BatchSteps,
        arriving: Sequence[StructType],
        progress: ProgressLog,
        figures: Figures,
        gate: Gate,
        query: QueryHandle,
        control: ControlThread,
        migrations: Migrations,
        bell: Bell,
        lease: Lease,
        transition: Transition | None = None,
    ) -> None:
        self.version = version
        """What the newest batch made true."""
        self.progress = progress
        self._figures = figures
        self.gate = gate
        self.error: BraidedError | None = None
        self._location = location
        self._flow = flow
        self._steps = steps
        self._arriving = arriving
        self._configured = False
        self._proved = False
        self._query = query
        self._control = control
        self._migrations = migrations
        self._bell = bell
        self._lease = lease
        self._transition = transition
        self._closing = threading.Lock()
        self._closed = False

    def run(self, df: DataFrame, batch: int) -> None:
        """One batch. Returns only when it is committed and published."""
        with self.gate.batch(batch, self._query.is_active):
            try:
                self._run(df, batch)
            except BaseException as error:
                raise self._explained(error, batch) from None

    def call_when_fenced(self, then: Callable[[], None]) -> None:
        """Has a function called if another query takes the checkpoint over; `error` says which."""

        def lost() -> None:
            if self.error is None:
                self.error = fenced(self._lease, self._location)
            then()

        self._lease.call_when_lost(lost)

    def why(self, said: str) -> BraidedError | None:
        """Why the query has ended, of which Spark said so much; None if we do not know better."""
        if self.error is None:
            self.error = explain_concurrent(said, self._lease, self._location)
        return self.error

    def explain(self, extended: bool) -> None:
        """Prints the flow by the tables in effect, and Spark's plan of the newest batch."""
        outputs = self._steps.outputs
        print(flow_text(self._flow, self.version.tables, outputs.names))
        for name, frame in zip(outputs.names, outputs.frames, strict=False):
            print(f"\n== Spark's plan of the newest batch, for {name} ==")
            with redirect_stdout(StringIO()) as told:
                frame.explain(extended)
            print(_TABLE.sub("[channel of each slot]", told.getvalue()), end="")

    def close(self) -> None:
        """Lets go of the checkpoint; who comes second waits until that is done."""
        with self._closing:
            if self._closed:
                return
            try:
                self._migrations.stop()
                self._control.close()
                self._bell.close()
                if self._transition is not None:
                    self._transition.close()
                self._steps.processing.close()
                self._steps.outputs.close()
            finally:
                self._lease.release()
                self._closed = True

    def _run(self, df: DataFrame, batch: int) -> None:
        before = self.version
        if not self._configured:
            configure(df.sparkSession, self._arriving)
            self._configured = True
        if batch == before.batch:
            self._publish_again(df, batch)
            return
        if batch != before.batch + 1:
            raise CheckpointMismatchError(
                f"Spark runs batch {batch} of {self._location}, but the newest manifest is of "
                f"batch {before.batch}: the checkpoint was changed while the query ran"
            )
        steps, times = self._steps, StepTimes()
        if not self._migrations.wait_for_turn(self._query.is_active):
            raise Stopped
        try:
            with times.step("admit"):
                steps.committer.check_lease()
                admitted = steps.admission.admit(df, batch, before, times)
            if not self._proved:
                # Whoever was taken over from may have been about to write the first ones, no more.
                planned = self._query.planned(_QUERY_S)
                refuse_replaced(planned, admitted.offsets, batch, self._location)
                self._proved = True
            self._migrations.began(admitted.tables)
            outcome = steps.processing.process(df, admitted, before, times)
        finally:
            steps.admission.let_go()
        with times.step("commit"):
            self.version = steps.committer.commit(
                outcome, before, admitted.offsets, self._control.memory, admitted.exposed
            )
            steps.outputs.forget_published(outcome.outputs)
        with times.step("publish"):
            failpoints.reach("after-manifest")
            steps.committer.check_lease()
            steps.outputs.publish(df.sparkSession, batch, outcome.outputs)
        with times.step("control"):
            content = steps.between.settle(outcome, before, self.version, times)
        self.progress.add(batch, content)
        self._figures.show(batch, content)
        steps.between.hand_over(outcome, self.version)
        failpoints.reach("after-publish")

    def _publish_again(self, df: DataFrame, batch: int) -> None:
        """A batch that a manifest has made true already: publishes what it names."""
        # Spark takes the watermark from the rows it sees, and its own stateful steps must run.
        df.write.format("noop").mode("overwrite").save()
        outputs = self._steps.committer.committed(batch).outputs
        self._steps.committer.check_lease()
        self._steps.outputs.publish(df.sparkSession, batch, outputs)
        self._steps.between.ask_for_next(self.version, had_input=True)
        content = self.progress.published_again(batch)
        self.progress.add(batch, content)
        self._figures.show(batch, content)

    def _explained(self, error: BaseException, batch: int) -> BaseException:
        """The error as Spark should get it: short, typed, or the words for an interrupt."""
        stopping = self.gate.stopping
        if stopping and isinstance(error, PublishError) and error.__cause__ is not None:
            error = error.__cause__  # Spark sees by its own words whether that is the stop
        if not self._query.is_active() or (stopping and is_interrupt(error)):
            return Stopped()
        typed = error if isinstance(error, BraidedError) else from_worker(error)
        if typed is None and is_of_spark(error) and not stopping:
            typed = self._failed_step(error, batch)
        if isinstance(self.error, FencedError):
            typed = self.error  # whatever failed besides, that is why it ends
        if typed is not None:
            self.error = typed
        self.close()
        return typed or error

    def _failed_step(self, error: BaseException, batch: int) -> BatchError:
        """What Spark could not compute: a step of the user's before, between or after operators."""
        said, _, lines = reason(error).partition("\n  File ")
        stands = "committed" if batch <= self.version.batch else "not committed"
        return BatchError(
            f"a step of the flow, or writing its output, failed: {said}\n"
            f"  batch: {batch}, which is {stands}: fix it and start the query again"
            + (f"\n  File {lines}" if lines else "")
        )
