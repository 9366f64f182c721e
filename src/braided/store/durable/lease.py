"""Who may write a checkpoint. A lease is advisory: it keeps two queries from doing the same work.

What keeps a checkpoint whole is the chain of manifests, each of which is created once. A lease
tells a newcomer early that somebody is there, and an old holder that it was replaced, before it
commits and before it publishes.

On a local path it is a lock of the operating system, which ends with its process
(`local_lease.py`); elsewhere an object per epoch, renewed by its holder (`epoch_lease.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from braided.store.durable.epoch_lease import EpochLease
from braided.store.durable.local_lease import LocalLease
from braided.store.durable.local_store import LocalStore
from braided.store.durable.store import Store

__all__ = ["Lease", "acquire_lease"]


class Lease(Protocol):
    """The right to write a checkpoint, held until `release` or the end of the process."""

    @property
    def owner(self) -> str:
        """Who holds it, for manifests and messages."""

    def held(self) -> bool:
        """Whether it is still this one's."""

    def successor(self) -> str | None:
        """Who has taken it over, as far as that can be told; None if nobody is known to."""

    def call_when_lost(self, then: Callable[[], None]) -> None:
        """Has a function called if somebody takes the lease over and that shows by itself."""

    def release(self) -> None:
        """Gives the lease back; again is fine, and from several threads at once."""


def acquire_lease(store: Store, owner: str, takeover: bool = False) -> Lease:
    """Takes the lease; FencedError naming the holder if there is one.

    With `takeover` it is taken from a holder that can't be proved dead, where that can be done: a
    lock of the operating system belongs to a process that lives, which has to be stopped.
    """
    if isinstance(store, LocalStore):
        return LocalLease.acquire(store, owner)
    return EpochLease.acquire(store, owner, takeover)
