"""Small disks for the hosts of a cluster, which can be filled up: a tmpfs for each.

To mount one takes the right to, which root has outside of most containers. Without it there is no
fault of this kind: a limit on the size of files, or a directory that refuses writes, would be
another fault with another error.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["DISK_MB", "can_mount", "empty", "fill", "mounted"]

DISK_MB = 160
_FILLER = "filler"
_CHUNK = b"\0" * (1 << 20)
# Whoever holds the other end of the input may die in any way: the mount goes with it.
_KEEPER = (
    'for d; do mount -t tmpfs -o size=$SIZE braided-chaos "$d" || exit 1; done; echo mounted; '
    'read -r _; for d; do umount -l "$d"; done'
)


@contextmanager
def mounted(directories: Sequence[Path], megabytes: int = DISK_MB) -> Iterator[None]:
    """Each of the directories is a disk of its own until the block ends."""
    for directory in directories:
        directory.mkdir(parents=True, exist_ok=True)
    keeper = subprocess.Popen(
        ["sh", "-c", _KEEPER, "sh", *map(str, directories)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SIZE": f"{megabytes}m"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert keeper.stdin is not None and keeper.stdout is not None and keeper.stderr is not None
    try:
        if keeper.stdout.readline() != b"mounted\n":
            raise PermissionError(keeper.stderr.read().decode().strip())
        yield
    finally:
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()
        keeper.stderr.close()


def can_mount(directory: Path) -> bool:
    try:
        with mounted([directory / "mount"], 1):
            return True
    except PermissionError:
        return False


def fill(disk: Path) -> None:
    """Leaves no room, to the last byte."""
    with (disk / _FILLER).open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(_CHUNK)


def empty(disk: Path) -> None:
    (disk / _FILLER).unlink(missing_ok=True)
