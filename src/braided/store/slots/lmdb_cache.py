"""The host's cache of slots: LMDB, shared by every worker process of the host.

Nothing here is ever needed: a slot can always be rebuilt from its runs. So there is one answer to
every LMDB error, a full disk included: throw the environment away and count it.

Layout. A query's slots are spread over a few environments, because LMDB takes one writer at a time
per environment. A key is the slot's address (operator ordinal, one byte; slot, three bytes) and the
suffix. Two suffixes are the cache's own: the tag says which version of the slot the cache holds,
and the undo record how to go back to the version before. Both are written in one transaction with
the data they speak of. A write names the version it builds on and is skipped if the tag is another:
a zombie attempt that comes late changes nothing.

Files. `<directory>/<n>.<generation>/` holds environment n. To drop it is to rename it away; the
next to need it makes another generation under another path, since LMDB refuses one path twice in a
process. A process that has the old one open works on unlinked files until it looks again. Opening
and dropping hold a file lock: LMDB opens its lock file and its data file by path one after the
other, and must not get them from two generations.

Durability. Without fsync a machine crash may leave pages of different ages under a valid tag, so a
directory must not outlive the boot: see `host_directory.py`. A killed process does no harm.

Size. An environment may hold its part of the bytes that the cache is given. A write that takes it
past them deletes slots, those first that were used longest ago, in its own transaction: a reader
keeps what it has open, and a writer finds another version than it builds on. With a tag lies when
the slot was used, written anew with each version, and for slots that are only read once a minute.
Files of LMDB do not shrink; one that is twice as large as it may be is thrown away.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar, cast

import lmdb
import msgspec

from braided.store.durable.store import UNREADABLE
from braided.store.slots.cache_port import EMPTY, Cached, Tag, Undo, Update, after
from braided.store.slots.host_directory import locked

__all__ = ["Cache"]

T = TypeVar("T")

ENVIRONMENTS = 8
MAP_SIZE = 256 << 30
MAX_READERS = 4096
LOCK_BYTES = MAX_READERS * 64 + 4096  # a cache line per reader, and what comes before them
# Of a disk, a cache takes one in so many bytes unless it is told otherwise.
DISK_SHARE = 4
# Slots leave when they take so many eighths of what an environment may hold, until they take so
# many: a batch that changes everything needs as much again, and the file is to be twice that.
_FULL_EIGHTHS, _KEPT_EIGHTHS = 7, 6
_TOUCH_AFTER_NS = 60 * 10**9
_STAMP_BYTES = 8
# Three descriptors each; a worker that serves many short queries must not run out of them.
HANDLES_KEPT = 4 * ENVIRONMENTS

_TAG = b"\x00tag"
_UNDO = b"\x00undo"


_encode = msgspec.msgpack.Encoder().encode
_decode_tag = msgspec.msgpack.Decoder(Tag).decode
_decode_undo = msgspec.msgpack.Decoder(Undo).decode


class LmdbImage:
    """One read transaction; all slots of an environment share it."""

    __slots__ = ("_transaction", "get")

    def __init__(self, transaction: lmdb.Transaction) -> None:
        self._transaction = transaction
        # Without buffers=True it gives bytes, which its type does not say.
        self.get: Callable[[bytes], bytes | None] = transaction.get  # type: ignore[assignment]

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._transaction.cursor() as cursor:
            if not cursor.set_range(start):
                return
            for key, value in cast("Iterator[tuple[bytes, bytes]]", cursor):
                if key >= stop:
                    return
                yield key, value

    def close(self) -> None:
        self._transaction.abort()


class _Environment:
    """An open LMDB environment and the file it was opened from."""

    __slots__ = ("_data", "_inode", "_main", "_page_bytes", "_size", "lmdb", "path")

    def __init__(self, path: Path, map_size: int) -> None:
        path.mkdir(parents=True, exist_ok=True)
        _allocate(path / "lock.mdb")
        self.path = path
        self.lmdb = lmdb.open(
            str(path),
            map_size=map_size,
            writemap=False,
            sync=False,
            metasync=False,
            readahead=False,
            max_readers=MAX_READERS,
            max_dbs=0,
        )
        self.lmdb.reader_check()  # killed workers leave readers behind, which pin old pages
        self._main = self.lmdb.open_db()
        self._page_bytes = self.lmdb.stat()["psize"]
        self._data = str(path / "data.mdb")
        status = os.stat(self._data)
        self._inode, self._size = status.st_ino, status.st_size

    def intact(self) -> bool:
        """Whether the file is still there under its path, and no shorter than it was."""
        try:
            status = os.stat(self._data)
        except OSError:
            return False
        if status.st_ino != self._inode or status.st_size < self._size:
            return False
        self._size = status.st_size
        return True

    def bytes_used(self, transaction: lmdb.Transaction) -> int:
        """What slots take; pages that are free to be used again are not counted."""
        pages = transaction.stat(self._main)
        used = pages["branch_pages"] + pages["leaf_pages"] + pages["overflow_pages"]
        return used * self._page_bytes

    def file_bytes(self) -> int:
        return (self.lmdb.info()["last_pgno"] + 1) * self._page_bytes


def _allocate(lock: Path) -> None:
    """Gives LMDB a lock file that has its blocks: it maps one of holes, which a full disk can't
    fill, and the first touch would be a SIGBUS.

    Never an existing one: to close it would take away the locks that this process has on it.
    """
    if not lock.exists():
        new = lock.with_suffix(".new")
        with open(new, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, LOCK_BYTES)
        new.rename(lock)


# (process, directory, environment) -> handle. The process is part of the key because a forked
# child must not use, nor close, what its parent opened. py-lmdb does not let it open the same
# files either, so a child of a process that uses a cache starts another generation.
_handles: OrderedDict[tuple[int, str, int], _Environment] = OrderedDict()
_handles_lock = threading.RLock()
os.register_at_fork(after_in_child=_handles_lock._at_fork_reinit)  # type: ignore[attr-defined]


class Cache:
    """A cache directory, in which the processes of a host share the slots of one flow."""

    def __init__(
        self, directory: Path, map_size: int = MAP_SIZE, max_bytes: int | None = None
    ) -> None:
        self._directory = Path(directory)
        self._map_size = map_size
        self._max_bytes = max_bytes
        self._seen: dict[int, set[bytes]] = {}  # what was read since the last write
        self.errors = 0

    def read(self, addresses: Iterable[bytes]) -> dict[bytes, Cached]:
        cached: dict[bytes, Cached] = {}
        for number, group in _by_environment(addresses, lambda address: address):
            with self._guarded(number):
                image = LmdbImage(self._open(number).lmdb.begin())
                get = image.get
                for address in group:
                    tag = _tag_in(get(address + _TAG))
                    cached[address] = Cached(tag, image, _undo_reader(image, address))
                self._seen.setdefault(number, set()).update(group)
        return cached

    def write(self, updates: Iterable[Update]) -> set[bytes]:
        written: set[bytes] = set()
        groups = _by_environment(updates, lambda update: update.address)
        # Processes that finish together start at different environments and so seldom queue.
        turn = os.getpid() % len(groups) if groups else 0
        for number, group in groups[turn:] + groups[:turn]:
            with self._guarded(number):
                environment = self._open(number)
                environment.lmdb.reader_check()
                limit = self._environment_bytes_max()
                with environment.lmdb.begin(write=True) as transaction:
                    seen = self._seen.pop(number, set())
                    _touch(transaction, seen.difference(update.address for update in group))
                    # With its undo record, a larger one would only drive out the others.
                    fitting = [update for update in group if update.tag.bytes <= limit // 2]
                    done = [u.address for u in fitting if _step(transaction, u)]
                    if environment.bytes_used(transaction) > limit * _FULL_EIGHTHS // 8:
                        _evict(environment, transaction, limit)
                written.update(done)
                if environment.file_bytes() > 2 * limit:
                    self.drop(number)
        return written

    def discard(self, address: bytes) -> None:
        self.errors += 1
        with contextlib.suppress(OSError):
            self.drop(_environment_of(address))

    def drop(self, number: int) -> None:
        """Throws an environment away, for every process of the host.

        The generation that this process has open, if it has one: another may have taken its place
        already, and that one is good.
        """
        with _handles_lock, locked(self._directory):
            handle = _handles.pop(self._key(number), None)
            for path in self._generations(number) if handle is None else [handle.path]:
                dead = path.with_name(f"dead.{uuid.uuid4().hex}")
                with contextlib.suppress(FileNotFoundError):
                    path.rename(dead)
                shutil.rmtree(dead, ignore_errors=True)

    @contextlib.contextmanager
    def _guarded(self, number: int) -> Iterator[None]:
        try:
            yield
        except (lmdb.Error, *UNREADABLE, OSError):
            self.errors += 1
            with contextlib.suppress(OSError):
                self.drop(number)

    def _open(self, number: int) -> _Environment:
        key = self._key(number)
        with _handles_lock:
            handle = _handles.get(key)
            if handle is not None and handle.intact():
                _handles.move_to_end(key)
                return handle
            if handle is not None:
                self.drop(number)
            with locked(self._directory):
                path = next(iter(self._generations(number)), None)
                path = path or self._directory / f"{number}.{uuid.uuid4().hex}"
                handle = _handles[key] = _Environment(path, self._map_size)
            _forget_oldest()
            return handle

    def _key(self, number: int) -> tuple[int, str, int]:
        return os.getpid(), str(self._directory), number

    def _generations(self, number: int) -> list[Path]:
        return sorted(self._directory.glob(f"{number}.*"))

    def _environment_bytes_max(self) -> int:
        if self._max_bytes is None:
            self._max_bytes = shutil.disk_usage(self._directory).total // DISK_SHARE
        return self._max_bytes // ENVIRONMENTS


def _forget_oldest() -> None:
    """Lets handles go that were not used for longest. Those in use live on in their images."""
    handles = [key for key in _handles if key[0] == os.getpid()]
    for key in handles[: max(0, len(handles) - HANDLES_KEPT)]:
        del _handles[key]


def _by_environment(items: Iterable[T], address: Callable[[T], bytes]) -> list[tuple[int, list[T]]]:
    groups: dict[int, list[T]] = {}
    for item in items:
        groups.setdefault(_environment_of(address(item)), []).append(item)
    return sorted(groups.items(), key=lambda group: group[0])


def _environment_of(address: bytes) -> int:
    return address[3] % ENVIRONMENTS


def _tag_in(record: bytes | memoryview | None) -> Tag:
    return EMPTY if record is None else _decode_tag(record[_STAMP_BYTES:])


def _stamp(time_ns: int) -> bytes:
    """When a slot was used, as the clock of this boot counts: what comes before a tag."""
    return time_ns.to_bytes(_STAMP_BYTES, "big")


def _undo_reader(image: LmdbImage, address: bytes) -> Callable[[], Undo | None]:
    def read() -> Undo | None:
        record = image.get(address + _UNDO)
        return None if record is None else _decode_undo(record)

    return read


def _step(transaction: lmdb.Transaction, update: Update) -> bool:
    address = update.address
    if _tag_in(transaction.get(address + _TAG)).digest != update.expected:
        return False
    if update.wipe:
        _wipe(transaction, address)
    keys = [address + suffix for suffix in update.suffixes]
    items: list[tuple[bytes, bytes | None]] = list(zip(keys, update.values, strict=True))
    if None in update.values:
        for key, value in items:
            if value is None:
                transaction.delete(key)
        items = [item for item in items if item[1] is not None]
    if items:
        transaction.cursor().putmulti(items)  # type: ignore[arg-type]
    transaction.put(address + _TAG, _stamp(time.monotonic_ns()) + _encode(update.tag))
    if update.undo is not None:
        transaction.put(address + _UNDO, _encode(update.undo))
    else:
        transaction.delete(address + _UNDO)
    return True


def _touch(transaction: lmdb.Transaction, addresses: Iterable[bytes]) -> None:
    """Says that slots were used which have not changed."""
    now_ns = time.monotonic_ns()
    oldest = _stamp(max(0, now_ns - _TOUCH_AFTER_NS))
    for address in addresses:
        record = transaction.get(address + _TAG)
        if record is not None and bytes(record) < oldest:
            transaction.put(address + _TAG, _stamp(now_ns) + bytes(record)[_STAMP_BYTES:])


def _evict(environment: _Environment, transaction: lmdb.Transaction, limit: int) -> None:
    """Deletes slots that were used longest ago, until the others are well below the limit."""
    for _, address in sorted(_by_use(transaction)):
        _wipe(transaction, address)
        if environment.bytes_used(transaction) <= limit * _KEPT_EIGHTHS // 8:
            return


def _by_use(transaction: lmdb.Transaction) -> Iterator[tuple[bytes, bytes]]:
    """The slots, each with its stamp. The tag is the first of a slot's items."""
    with transaction.cursor() as cursor:
        found = cursor.first()
        while found:
            address = bytes(cursor.key()[:4])
            yield bytes(cursor.value()[:_STAMP_BYTES]), address
            found = cursor.set_range(after(address))


def _wipe(transaction: lmdb.Transaction, address: bytes) -> None:
    with transaction.cursor() as cursor:
        cursor.set_range(address)
        while bytes(cursor.key()).startswith(address):
            cursor.delete()
