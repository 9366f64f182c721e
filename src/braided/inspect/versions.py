"""The versions of a checkpoint that can be read: the batches whose manifests are kept.

Nothing is locked, so a query may run meanwhile. It may also remove, in the middle of a read, a
version that it no longer has to keep. Manifests go before the files that only they need: a file
that is missing while its version's manifest is there is damage, otherwise the version is gone, and
the reader is told so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from braided.errors import CheckpointCorruptError, StateNotFoundError
from braided.store.durable.store import Store
from braided.store.history.manifest import View
from braided.store.history.manifest_log import ManifestLog

__all__ = ["Versions"]

_READS = 5

_Read = TypeVar("_Read")


class Versions:
    """The versions that a checkpoint still has."""

    def __init__(self, store: Store) -> None:
        """`store` is what Braided keeps in the checkpoint."""
        self.files = store
        self._manifests = ManifestLog(store)

    @property
    def _checkpoint(self) -> str:
        return self.files.location.text.removesuffix("/braided")

    def retained(self) -> range:
        """The batches that can be read."""
        batches = self._manifests.batches()
        if not batches:
            raise StateNotFoundError(
                f"{self._checkpoint} holds no committed batch of Braided's: is it the "
                "checkpointLocation of a query that has run?"
            )
        lowest = newest = batches[-1]
        for batch in reversed(batches[:-1]):
            if batch != lowest - 1:
                break  # what is below a gap is on its way out
            lowest = batch
        return range(lowest, newest + 1)

    def view(self, version: int | None) -> View:
        """The flow at a version; at the newest if none is asked for."""
        for _ in range(_READS):
            retained = self.retained()
            batch = retained[-1] if version is None else version
            if batch not in retained:
                break
            try:
                return self._manifests.view_at(batch)
            except CheckpointCorruptError:
                if batch in self.retained():
                    raise
                # It went between two looks; the newest one will be another now.
        raise self.gone(batch)

    def gone(self, batch: int) -> StateNotFoundError:
        kept = self.retained()
        return StateNotFoundError(
            f"the state of batch {batch} is not retained in {self._checkpoint}; batches "
            f"{kept[0]} to {kept[-1]} are. Ask for one of them, or let the query keep more with "
            "braided.retainedManifests"
        )

    def batch_time_ms(self, batch: int) -> int:
        return self._manifests.read(batch).batch_time_ms

    def reading(self, batches: list[int], read: Callable[[], _Read]) -> _Read:
        """What `read` gives; says so if a version that it reads is removed meanwhile."""
        try:
            return read()
        except CheckpointCorruptError:
            for batch in batches:
                if batch not in self.retained():
                    raise self.gone(batch) from None
            raise
