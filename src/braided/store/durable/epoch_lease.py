"""The lease where no lock is known: an object per epoch, `lease/<epoch>.json`.

To take the lease is to create the object of the next epoch, which only one can. Its holder writes
it anew every few seconds, and at the end says in it that it was given back; whoever finds one that
was not renewed for a while, or whose process is gone from this machine, takes the next epoch. A
holder has lost its lease when there is an object of a later epoch: it looks before a batch, before
it commits and before it publishes, and whenever it renews, so that an idle one ends as well.

Freshness is told by the holders' clocks, so that hosts whose clocks differ by more than the time
that a lease stays fresh may take it too early or too late. That costs work and no state.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from braided.errors import BraidedError, FencedError
from braided.store.durable.store import UNREADABLE, Store, intended

__all__ = ["EpochLease"]

FRESH_S = 30.0
RENEWED_EVERY_S = 5.0

_DIRECTORY = "lease"
_NAME = re.compile(rf"{_DIRECTORY}/([0-9]+)\.json$")

log = logging.getLogger("braided")


class _Holder(msgspec.Struct, frozen=True):
    """What an epoch's object says."""

    owner: str
    host: str
    pid: int
    process: str
    """Names the process among all that its machine has had and will have."""
    token: str
    since: str
    renewed_ms: int
    released: bool = False

    def __str__(self) -> str:
        return f"{self.owner} (pid {self.pid} on {self.host}, since {self.since})"

    def renewed(self, released: bool = False) -> _Holder:
        return msgspec.structs.replace(self, renewed_ms=_now_ms(), released=released)

    def is_alive(self) -> bool | None:
        """Whether its process is there; None for one of another machine, where that is unknown."""
        machine, _, began = self.process.partition("/")
        return began == _began(self.pid) if machine == _machine() else None

    def holds(self) -> bool:
        """Whether a newcomer has to leave the lease alone."""
        if self.released:
            return False
        if self.process == _process(os.getpid()):
            return self.token in _held  # one of our own may have ended without saying so
        return self.is_alive() is not False and self.age_s() <= FRESH_S

    def age_s(self) -> float:
        return (_now_ms() - self.renewed_ms) / 1000


class EpochLease:
    """An epoch that this process holds, renewed until `release`."""

    def __init__(self, store: Store, epoch: int, holder: _Holder) -> None:
        self.owner = f"{holder.owner} (pid {holder.pid} on {holder.host}, epoch {epoch})"
        self._store = store
        self._epoch = epoch
        self._holder = holder
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._when_lost: Callable[[], None] = _do_nothing
        _held.add(holder.token)
        threading.Thread(target=self._renew, name="braided-lease", daemon=True).start()

    @classmethod
    def acquire(cls, store: Store, owner: str, takeover: bool) -> EpochLease:
        """Takes the next epoch; FencedError while the newest one is somebody's."""
        while True:
            newest = max(_epochs(store), default=0)
            if newest and not takeover:
                _refuse_if_held(store, newest)
            holder = _Holder(
                owner=owner,
                host=socket.gethostname(),
                pid=os.getpid(),
                process=_process(os.getpid()),
                token=uuid.uuid4().hex,
                since=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
                renewed_ms=_now_ms(),
            )
            if store.put_if_absent(_name(newest + 1), msgspec.json.encode(holder)):
                now = store.list(_DIRECTORY)
                if max(filter(None, map(_epoch, now))) == newest + 1:
                    store.delete(name for name in now if _is_over(name, newest))
                    return cls(store, newest + 1, holder)
                # The epoch had been taken, given back and tidied away while we were on the way.
                store.delete([_name(newest + 1)])
            # Somebody was faster; if they can be proved to be there, the next look says who.
            takeover = False

    def held(self) -> bool:
        return not self._ended.is_set() and max(_epochs(self._store), default=0) == self._epoch

    def successor(self) -> str | None:
        newest = max(_epochs(self._store), default=0)
        if newest <= self._epoch:
            return None
        try:
            return str(msgspec.json.decode(self._store.get(_name(newest)), type=_Holder))
        except (FileNotFoundError, *UNREADABLE):
            return "another query"

    def call_when_lost(self, then: Callable[[], None]) -> None:
        """Has a function called, in a thread of its own, if somebody takes the lease over."""
        self._when_lost = then

    def release(self) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._end()
            try:
                self._store.put(_name(self._epoch), msgspec.json.encode(self._holder.renewed(True)))
            except BraidedError as error:
                log.warning("the lease stays until it is %d s old: %s", FRESH_S, error)

    def _renew(self) -> None:
        while not self._ended.wait(RENEWED_EVERY_S):
            with self._lock:
                if self._ended.is_set():
                    return
                try:
                    if max(_epochs(self._store), default=0) != self._epoch:
                        self._end()
                        break
                    self._store.put(_name(self._epoch), msgspec.json.encode(self._holder.renewed()))
                except BraidedError as error:
                    # A batch that can't be committed will say so; this is no reason to end.
                    log.warning("the lease was not renewed: %s", error)
        else:
            return
        log.warning("another query has taken over %s; this one ends", self._store.location)
        self._when_lost()

    def _end(self) -> None:
        self._ended.set()
        _held.discard(self._holder.token)


_held: set[str] = set()
"""The tokens of the leases that this process holds."""


def _do_nothing() -> None:
    pass


def _refuse_if_held(store: Store, epoch: int) -> None:
    try:
        holder = msgspec.json.decode(store.get(_name(epoch)), type=_Holder)
    except FileNotFoundError:
        return  # the one who took the next epoch has tidied up
    except UNREADABLE:
        return  # nobody that could be named
    if not holder.holds():
        return
    raise FencedError(
        f"{store.path(_name(epoch))} is held by {holder}, which renewed it {holder.age_s():.0f} s "
        f"ago. Stop that query first; two must not run on one checkpoint. If it is dead, start "
        f"again when the lease is {FRESH_S:.0f} s old, or with "
        f'.option("braided.takeover", True), which ends it if it lives'
    )


def _epochs(store: Store) -> list[int]:
    return [epoch for epoch in map(_epoch, store.list(_DIRECTORY)) if epoch is not None]


def _epoch(name: str) -> int | None:
    match = _NAME.match(name)
    return None if match is None else int(match[1])


def _is_over(name: str, newest: int) -> bool:
    """Whether a file is of an epoch up to `newest`, or was to be when its holder was killed."""
    epoch = _epoch(intended(name) or name)
    return epoch is not None and epoch <= newest


def _name(epoch: int) -> str:
    return f"{_DIRECTORY}/{epoch:08d}.json"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _machine() -> str:
    """Names a machine since it was started, and a container on it apart from others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return uuid.uuid4().hex  # nothing can be known of processes


def _process(pid: int) -> str:
    """Names a process of this machine among all that it has had and will have."""
    return f"{_machine()}/{_began(pid)}"


def _began(pid: int) -> str:
    """When a process of this machine began, in the kernel's words; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name, in brackets, may have spaces and brackets in it.
    return stat.rpartition(")")[2].split()[19]
