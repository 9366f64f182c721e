"""Where the cache of a flow is on this host, whose it is, and which others can go.

    <base>/braided-cache-<user>/<host>-<boot>-<process numbers>/<flow>/

Every process finds it for itself. It is one directory for all that may share a cache, and for
nobody else:

- the user: it holds state in plain bytes, and base may be /tmp, so it is closed to others;
- the boot: without fsync a machine crash may leave pages of different ages under a valid tag;
- the process numbers: LMDB knows its readers by them, and containers that share a disk count
  processes each for itself. Linux tells such namespaces apart by a number.

Processes that have a cache here also clean up. Only what is proven dead goes: the cache of a
checkpoint that was deleted, one of an earlier boot of this host, and one that nobody has written to
for `UNUSED_S`. A checkpoint that can't be seen proves nothing: its disk may be away for a moment,
or be an object store. It was deleted if the nearest of its parents that is there is the very
directory that was there before.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import shutil
import socket
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

__all__ = ["host_directory", "locked", "settle_in"]

UNUSED_S = 7 * 86_400
"""A cache that nobody has written to for so long is not worth its disk."""
CLEAN_EVERY_S = 3_600
"""How often one of a host's processes looks for what can go."""

_CLAIM = "checkpoint"
_CLEANED = "cleaned"
_LOCK = "lock"
_DEAD = "dead."
_MACHINE = re.compile(r"(?P<host>.+)-(?P<boot>[0-9a-f-]{36})-\d+")


class _Ancestor(msgspec.Struct, frozen=True, array_like=True):
    """A directory as it was when the checkpoint was in it."""

    path: str
    device: int
    inode: int


class _Claim(msgspec.Struct, frozen=True):
    """Whose cache a directory is."""

    root: str
    way: tuple[_Ancestor, ...]
    """The root, where it is on a file system of this host, and its parents up to the top."""


_claimed: set[tuple[Path, str]] = set()


def host_directory(base: Path, flow: str) -> Path:
    """The cache directory of a flow on this host, for this boot; nothing is made yet."""
    return base / f"braided-cache-{os.geteuid()}" / _machine() / flow


def settle_in(directory: Path, root: str) -> None:
    """Makes the directory, says which checkpoint it is for, and cleans up around it.

    An OSError means that it can't be had, or not for us alone.
    """
    home = directory.parent.parent
    _make_private(home)
    if (directory, root) not in _claimed:
        directory.mkdir(parents=True, exist_ok=True)
        _write_claim(directory, root)
        _claimed.add((directory, root))
    if _is_due(home / _CLEANED):
        _clean(home, directory)


@contextlib.contextmanager
def locked(directory: Path, wait: bool = True) -> Iterator[bool]:
    """Holds the directory's lock, for this process alone; False if somebody else does, who is not
    waited for.
    """
    how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / _LOCK, "a") as file:
            try:
                fcntl.flock(file, how)
            except BlockingIOError:
                yield False
                return
            if not _is_at(file.fileno(), directory / _LOCK):
                continue  # it was removed with its directory while we waited
            yield True
            return


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


@functools.cache
def _machine() -> str:
    try:
        numbers = os.stat("/proc/self/ns/pid").st_ino
        return f"{socket.gethostname()}-{_boot()}-{numbers}"
    except OSError:
        # Nothing says when the host was started: share with nobody, outlive nothing.
        return f"process-{uuid.uuid4().hex}"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _make_private(home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        home.mkdir(mode=0o700)
    status = home.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(
            f"{home} is somebody else's, who could read and change what a cache there holds; "
            "remove it, or set braided.cache.dir to a directory of your own"
        )
    if status.st_mode & 0o077:
        home.chmod(0o700)


def _write_claim(directory: Path, root: str) -> None:
    way: tuple[_Ancestor, ...] = ()
    if os.path.isabs(root):
        with contextlib.suppress(FileNotFoundError):
            way = tuple(_ancestors(Path(root)))
    new = directory / f"{_CLAIM}.{uuid.uuid4().hex}"
    new.write_bytes(msgspec.json.encode(_Claim(root, way)))
    new.rename(directory / _CLAIM)


def _ancestors(root: Path) -> Iterator[_Ancestor]:
    for path in (root, *root.parents):
        status = path.stat()
        yield _Ancestor(str(path), status.st_dev, status.st_ino)


# -- cleaning up -----------------------------------------------------------------------------------


def _is_due(cleaned: Path) -> bool:
    """Whether it is this process's turn: the file says when somebody has last cleaned up."""
    with contextlib.suppress(FileNotFoundError):
        if abs(time.time() - cleaned.stat().st_mtime) < CLEAN_EVERY_S:
            return False
    cleaned.touch(mode=0o600)
    return True


def _clean(home: Path, own: Path) -> None:
    """Removes what is dead. Whatever can't be looked at or removed stays."""
    for machine in _directories(home):
        if _is_of_an_earlier_boot(machine):
            shutil.rmtree(machine, ignore_errors=True)
            continue
        for flow in _directories(machine):
            if flow.name.startswith(_DEAD):
                shutil.rmtree(flow, ignore_errors=True)
            elif flow != own and (_is_unused(flow) or (machine == own.parent and _is_gone(flow))):
                _remove(flow)
        if machine != own.parent:
            with contextlib.suppress(OSError):
                machine.rmdir()
    for leftover in _directories(own):
        if leftover.name.startswith(_DEAD):
            shutil.rmtree(leftover, ignore_errors=True)


def _directories(parent: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in parent.iterdir() if path.is_dir() and not path.is_symlink()]
    return []


def _is_of_an_earlier_boot(machine: Path) -> bool:
    """Whether it is this host's from before it was started, which is of no use to anybody.

    Hosts that share a disk may share a name as well, but not what was written before a boot.
    """
    theirs, ours = _MACHINE.fullmatch(machine.name), _MACHINE.fullmatch(_machine())
    if theirs is None or ours is None or theirs["boot"] == ours["boot"]:
        return False
    started_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return theirs["host"] == ours["host"] and _last_used_s(machine) < started_s


def _is_unused(flow: Path) -> bool:
    return time.time() - _last_used_s(flow) > UNUSED_S


def _last_used_s(directory: Path) -> float:
    """When somebody has last written there; now, if that can't be told."""
    try:
        return max(path.stat().st_mtime for path in (directory, *directory.rglob("*")))
    except OSError:
        return time.time()


def _is_gone(flow: Path) -> bool:
    """Whether the checkpoint is proven to be deleted."""
    try:
        claim = msgspec.json.decode((flow / _CLAIM).read_bytes(), type=_Claim)
        for number, ancestor in enumerate(claim.way):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(ancestor.path)
                same = (status.st_dev, status.st_ino) == (ancestor.device, ancestor.inode)
                return number > 0 and same
    except (OSError, msgspec.DecodeError):
        pass
    return False


def _remove(flow: Path) -> None:
    """Removes a directory unless somebody is at it; who has it open goes on with what has lost its
    name, and makes another.
    """
    dead = flow.with_name(f"{_DEAD}{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        with locked(flow, wait=False) as alone:
            if not alone:
                return
            flow.rename(dead)
        shutil.rmtree(dead, ignore_errors=True)
