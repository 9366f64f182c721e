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
directory must not outlive the boot: see `host_directory`. A killed process does no harm.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar, cast

import lmdb
import msgspec

from braided.store.durable.store import UNREADABLE
from braided.store.slots.cache_port import EMPTY, Cached, Tag, Undo, Update

__all__ = ["Cache", "claim", "host_directory"]

T = TypeVar("T")

ENVIRONMENTS = 8
MAP_SIZE = 256 << 30
MAX_READERS = 4096
LOCK_BYTES = MAX_READERS * 64 + 4096  # a cache line per reader, and what comes before them
# Three descriptors each; a worker that serves many short queries must not run out of them.
HANDLES_KEPT = 4 * ENVIRONMENTS

_OWNER = "checkpoint"
_TAG = b"\x00tag"
_UNDO = b"\x00undo"


@functools.lru_cache
def host_directory(base: Path, flow: str) -> Path:
    """The cache directory of a flow on this host, for this boot; those of older boots go.

    To be asked on the host that uses it, not on the driver for all of them.
    """
    # A directory of our own, in which everything is ours to delete: base may be /tmp.
    directory = Path(base) / "braided-cache"
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Nothing says when the host was started: share with nobody, outlive nothing.
        return directory / f"process-{uuid.uuid4().hex}" / flow
    # A disk that can't be written costs the cache, which says so itself, and not the query.
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        for other in directory.iterdir():
            if other.name != f"boot-{boot}":
                shutil.rmtree(other, ignore_errors=True)
    return directory / f"boot-{boot}" / flow


def claim(directory: Path, root: str) -> None:
    """Says whose cache a directory is, and removes its neighbours whose checkpoint is gone."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / _OWNER).write_text(root)
        for other in directory.parent.iterdir():
            owner = other / _OWNER
            if owner.exists() and not Path(owner.read_text()).exists():
                shutil.rmtree(other, ignore_errors=True)
    except OSError:
        return  # a cache that can't be kept is no reason not to start


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

    __slots__ = ("_data", "_inode", "_size", "lmdb", "path")

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

    def __init__(self, directory: Path, map_size: int = MAP_SIZE) -> None:
        self._directory = Path(directory)
        self._map_size = map_size
        self.errors = 0

    def read(self, addresses: Iterable[bytes]) -> dict[bytes, Cached]:
        cached: dict[bytes, Cached] = {}
        for number, group in _by_environment(addresses, lambda address: address):
            with self._guarded(number):
                image = LmdbImage(self._open(number).lmdb.begin())
                get = image.get
                for address in group:
                    record = get(address + _TAG)
                    tag = EMPTY if record is None else _decode_tag(record)
                    cached[address] = Cached(tag, image, _undo_reader(image, address))
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
                with environment.lmdb.begin(write=True) as transaction:
                    done = [u.address for u in group if _step(transaction, u)]
                written.update(done)
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
        with _handles_lock, self._locked():
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
            with self._locked():
                path = next(iter(self._generations(number)), None)
                path = path or self._directory / f"{number}.{uuid.uuid4().hex}"
                handle = _handles[key] = _Environment(path, self._map_size)
            _forget_oldest()
            return handle

    def _key(self, number: int) -> tuple[int, str, int]:
        return os.getpid(), str(self._directory), number

    def _generations(self, number: int) -> list[Path]:
        return sorted(self._directory.glob(f"{number}.*"))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._directory.mkdir(parents=True, exist_ok=True)
        with open(self._directory / "lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


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


def _undo_reader(image: LmdbImage, address: bytes) -> Callable[[], Undo | None]:
    def read() -> Undo | None:
        record = image.get(address + _UNDO)
        return None if record is None else _decode_undo(record)

    return read


def _step(transaction: lmdb.Transaction, update: Update) -> bool:
    address = update.address
    record = transaction.get(address + _TAG)
    if (EMPTY if record is None else _decode_tag(record)).digest != update.expected:
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
    transaction.put(address + _TAG, _encode(update.tag))
    if update.undo is not None:
        transaction.put(address + _UNDO, _encode(update.undo))
    else:
        transaction.delete(address + _UNDO)
    return True


def _wipe(transaction: lmdb.Transaction, address: bytes) -> None:
    with transaction.cursor() as cursor:
        cursor.set_range(address)
        while bytes(cursor.key()).startswith(address):
            cursor.delete()
