"""A table that others write to as well: what it is now, and batches that are added to it once.

Formats differ in how a change of the table is made (`delta_log.py`, `iceberg_log.py`). They agree
in what a change has to be: one step, in which the batch becomes visible and the table notes the
sink and the batch, and which fails if anybody else was first. Who fails looks again: it may be
the same batch that was first, published by another process.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pyspark.sql.types import StructField, StructType

from braided.errors import CheckpointMismatchError, DefinitionError, PublishError
from braided.sinks.fitting import misfit
from braided.store.durable.store import Store

__all__ = ["BatchRows", "FileEntry", "SomebodyWasFirst", "TableLog"]

FileEntry = Mapping[str, Any]
"""A file as the sink of the format has described it in the manifest."""


@dataclass(frozen=True)
class BatchRows:
    """The rows of a committed batch, which a table is to have."""

    number: int
    files: Sequence[FileEntry]
    schema: StructType
    keys: tuple[str, ...]
    """Columns by whose values rows replace others; of two rows of the batch one differs in them.
    None: rows are added to those that there are.
    """
    store: Store
    """Where the files are, below the `path` of each."""
    prepared_s: float | None = None
    """When it was prepared, by the clock, if that was before this start and is known: the table may
    have had it since, and forgotten.
    """


_TRIES = 12
_PAUSE_S = 0.05
"""What a writer that lost waits for the first time, and twice as long each time after."""

_PAUSE_S_MAX = 2.0


class SomebodyWasFirst(Exception):
    """The table is not any more what it was when the change was made."""


class TableLog(ABC):
    """What a table knows of itself."""

    format: ClassVar[str]
    title: str
    """What messages call the table, such as `Delta table /path`."""

    # -- the table as it is now --------------------------------------------------------------

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is a table; reads it anew, as it may be another of the same name."""

    @property
    @abstractmethod
    def schema(self) -> StructType: ...

    @property
    @abstractmethod
    def partition_by(self) -> list[str]:
        """The columns by whose values rows are kept apart."""

    @property
    @abstractmethod
    def not_for_us(self) -> str | None:
        """What the table asks of its writers and only an engine can do; None if nothing."""

    @abstractmethod
    def batch_of(self, application: str) -> int | None:
        """The newest batch that the table has of a sink; None if it has none."""

    @property
    @abstractmethod
    def remembers_s(self) -> float | None:
        """How long the table remembers the newest batch of a sink; None: for good."""

    def check_age(self, application: str, newest: int) -> None:
        """Refuses a checkpoint that ends before the newest batch that the table has of its sink."""
        written = self.batch_of(application)
        if written is not None and written > newest:
            raise CheckpointMismatchError(
                f"the {self.title} has batch {written} of this query, whose checkpoint ends "
                f"with batch {newest}: the checkpoint is an older copy. Batches would be taken for "
                "written already. Use the checkpoint that goes with the table, or a new one"
            )

    # -- changes -----------------------------------------------------------------------------

    @abstractmethod
    def create(self, schema: StructType, partition_by: Sequence[str]) -> None:
        """Makes the table; one that somebody else has just made is fine as well."""

    @abstractmethod
    def add_columns(self, fields: Sequence[StructField]) -> None: ...

    @abstractmethod
    def _commit(self, batch: BatchRows, application: str) -> None:
        """Makes the rows visible, in one step with the batch; `SomebodyWasFirst` if the table was
        changed since it was looked at, ValueError and OSError where it can't be done.
        """

    @abstractmethod
    def _settle(self, batch: BatchRows, application: str) -> None:
        """Makes a batch durable that the table has already: whoever brought it there may have died
        before it saw to that.
        """

    def publish(self, batch: BatchRows, application: str) -> bool:
        """Gives the table the rows of a sink's batch; False if it has the batch already."""
        why: Exception | None = None
        for number in range(_TRIES):
            if number:
                time.sleep(min(_PAUSE_S * 2**number, _PAUSE_S_MAX))
            self._look_again(batch)
            newest = self.batch_of(application)
            if newest is not None and newest >= batch.number:
                self._settle(batch, application)
                return False
            if newest is None:
                self._check_memory(batch, application)
            try:
                self._commit(batch, application)
            except SomebodyWasFirst as error:
                why = error  # it may have been us, in another process
            except (ValueError, OSError) as error:
                raise self.unpublished(batch.number, str(error)) from error
            else:
                return True
        raise self.unpublished(batch.number, f"{_TRIES} times somebody else was first ({why})")

    def _look_again(self, batch: BatchRows) -> None:
        """Sees what others have made of the table, which a batch must still fit."""
        try:
            found = self.exists()
        except DefinitionError as error:
            raise self.unpublished(batch.number, str(error)) from None
        if not found:
            raise self.unpublished(batch.number, "the table is gone")
        problem = misfit(self.schema, batch.schema) or self.not_for_us
        if problem:
            raise self.unpublished(batch.number, f"the table was changed meanwhile: {problem}")

    def _check_memory(self, batch: BatchRows, application: str) -> None:
        """Refuses a batch that the table may have had, and forgotten."""
        remembers_s, prepared_s = self.remembers_s, batch.prepared_s
        if remembers_s is None or prepared_s is None or time.time() - prepared_s <= remembers_s:
            return
        raise PublishError(
            f"batch {batch.number} was committed {time.ctime(prepared_s)}, and the {self.title} "
            f"remembers no batch of this query (application {application}): it forgets them after "
            f"{remembers_s:g} s. Whether it has the batch can't be told. docs/sinks.md says how to "
            "find out, and what to do"
        )

    def unpublished(self, number: int, why: str) -> PublishError:
        """What to say of a batch that the table can't have yet."""
        return PublishError(
            f"batch {number} is committed, and its rows can't be brought to the "
            f"{self.title}: {why}. They are kept; put it right and start the query again, which "
            "then publishes the batch"
        )
