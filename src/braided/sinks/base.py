"""What every sink is to a query: output is prepared before the manifest and visible after it.

    prepare   runs the plan, leaves the output where no reader sees it, says what to publish
    publish   makes visible what the manifest names; may be called again for the same batch

A sink says of what kind it is and where its output goes. The two are written to disk, chosen on
purpose and not taken from a Python name, so that a redelivered batch finds its sink again whatever
the order of the writers is (`identity.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from braided.store.durable.store import Store

__all__ = ["NoopSink", "Sink", "SinkSetting"]


@dataclass(frozen=True)
class SinkSetting:
    """The query that a sink is opened for."""

    spark: SparkSession
    files: Store
    newest: int
    """The newest batch that has a manifest, -1 when none has."""
    identity: str
    """The same for this sink of this query at every start, and for no other."""
    check_lease: Callable[[], None]
    """Raises FencedError if another query has taken the checkpoint over."""
    ending: ExitStack
    """What is to be let go of when the query ends, however that is."""


class Sink(Protocol):
    """Where the output of a query goes."""

    @property
    def kind(self) -> str:
        """What a manifest calls sinks of this kind. It is on disk: it does not change."""

    @property
    def earlier_name(self) -> str | None:
        """What manifests call it that were written before sinks had kinds; None if it is newer."""

    @property
    def target(self) -> str | None:
        """Where the output goes, in one spelling and without secrets, as it is written to disk.
        None where nothing tells two sinks of the kind apart.
        """

    @property
    def owned_path(self) -> str | None:
        """The directory that no other sink of the query may write to, where there is one."""

    @property
    def keeps(self) -> bool:
        """Whether what it publishes outlives the process, so that the checkpoint has to as well."""

    @property
    def newest_only(self) -> bool:
        """Whether of the rows with one key it keeps the newest, which takes the place of others."""

    def open(self, setting: SinkSetting) -> None:
        """Called once before the first batch."""

    def started(self) -> None:
        """Called once the query has started; one that can't start must not leave a trace."""

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        """Runs the plan; what it returns is kept in the manifest."""

    @property
    def rows_prepared(self) -> int | None:
        """How many rows were prepared last; None where nobody counts."""

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        """Makes the entries visible as the output of `batch`."""

    def discard(self, entries: tuple[str, ...]) -> None:
        """Removes what was prepared, as nobody will publish it again."""


class NoopSink:
    """Runs the plan and drops the rows."""

    kind = "noop"
    earlier_name = "NoopSink"
    target = None
    owned_path = None
    keeps = False
    newest_only = False
    rows_prepared = None

    def open(self, setting: SinkSetting) -> None:
        pass

    def started(self) -> None:
        pass

    def prepare(self, df: DataFrame, attempt: str) -> tuple[str, ...]:
        df.write.format("noop").mode("overwrite").save()
        return ()

    def publish(self, spark: SparkSession, batch: int, entries: tuple[str, ...]) -> None:
        pass

    def discard(self, entries: tuple[str, ...]) -> None:
        pass
