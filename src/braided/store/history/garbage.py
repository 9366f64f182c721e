"""Removing what no batch that must be kept can need.

Kept are the newest `retain` manifests, and those before them back to a full one: whatever manifest
is there can be read, with all its state. So state only goes when a newer full manifest takes over
as the oldest one kept, and what then goes is the difference of two views: nothing is listed, and
batches in between cost one look at a number.

    runs      reachable from no manifest kept
    out       of a batch older than the newest `retain`: published long ago
    carry     named by no manifest kept
    dead      named by no manifest at all, nor in a list that one names: diverted rows are kept for
              good; the lists themselves as runs are (`dead_lists.py`)
    sources   named by no manifest kept

Manifests go first, the newest of them first, then what only they needed. A crash in between leaves
files that nobody names; those, and what attempts that lost have written, are orphans. They are
found by a listing, when a query starts and then every `ORPHANS_EVERY` batches; so is output that
was published. Files of a batch that is not yet committed are never touched. A task of an older one
that still writes can be told from nothing and counts for nobody: what it leaves after a listing
goes with the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from braided import failpoints
from braided.store.durable.store import Store, intended
from braided.store.history.manifest import Manifest, View
from braided.store.history.manifest_log import DIRECTORY, ManifestLog
from braided.store.history.runs import batch_of
from braided.store.history.source_entries import DIRECTORY as _SOURCES

__all__ = ["LISTING", "ORPHANS_EVERY", "Collector", "collect"]

LISTING = ".list"
"""How a directory in `out` ends in which Spark lists the files that a batch has written."""

ORPHANS_EVERY = 64
"""Batches between two listings of a running query, which cost as much as there are files."""

_OUT = "out"
_LISTED = ("state", "carry", "dead", _SOURCES)
_BEGUN = (DIRECTORY, "import")
"""Where files may have been begun, by a process that was killed, whose names tell no batch."""
_DELETED_TOGETHER = 64


def collect(files: Store, manifests: ManifestLog, retain: int) -> int:
    """Removes everything that can go, found by listing; the number of files removed."""
    collector = Collector(files, manifests, retain)
    return collector.collect_orphans()


class Collector:
    """Collects as batches are committed. Only the holder of the lease may."""

    def __init__(self, files: Store, manifests: ManifestLog, retain: int) -> None:
        if retain < 1:
            raise ValueError(f"the newest manifest must be kept: retain is {retain}")
        self._files = files
        self._manifests = manifests
        self._retain = retain
        self._oldest: View | None = None  # the view at the oldest manifest kept, once known
        self._seen = self._listed = -1
        self._fulls: list[int] = []
        self._brought: dict[int, frozenset[str]] = {}  # by batch, of those after the oldest kept

    def collect(self, newest: int) -> int:
        """After batch `newest` was committed: removes what it made unneeded."""
        if self._oldest is None:
            return self.collect_orphans()
        self._see(range(self._seen + 1, newest + 1))
        removed = 0
        base = self._base(newest)
        if base > self._oldest.batch:
            removed += self._advance(base)
        if newest - self._listed >= ORPHANS_EVERY:
            removed += self._delete_orphans(newest) + self._delete_outdated(newest)
        return removed

    def collect_orphans(self, show: Callable[[Manifest], None] | None = None) -> int:
        """Removes everything unneeded, found by listing the checkpoint. No batch may be running.
        It reads every manifest that is kept, the oldest first; they are also shown to `show`.
        """
        self._delete_leftovers()
        batches = self._manifests.batches()
        if not batches:
            return 0
        newest = lowest = batches[-1]
        for batch in reversed(batches[:-1]):
            # What is below a gap was about to go when a crash came in between.
            if batch != lowest - 1:
                break
            lowest = batch
        window = max(lowest, newest - self._retain + 1)
        base = self._manifests.base_of(window)
        self._fulls, self._brought = [], {}
        self._see(range(base, newest + 1), show)
        self._oldest = self._manifests.view_at(base)
        pruned = self._manifests.prune(base)
        failpoints.reach("gc")
        removed = len(pruned) + self._delete_orphans(newest)
        halves = [name for kind in _BEGUN for name in self._files.list(kind) if intended(name)]
        return removed + self._delete(halves) + self._delete_outdated(newest)

    def _delete_orphans(self, newest: int) -> int:
        """Removes what no manifest kept names, of batches that are committed."""
        assert self._oldest is not None
        self._listed = newest
        needed = self._oldest.live_files() | self._added(self._oldest.batch, newest)
        dead = self._manifests.dead_files(self._manifests.view_at(newest, self._oldest.flow))
        needed.update(file.name for file in dead)
        listed = [n for kind in _LISTED for n in self._files.list(kind)]
        return self._delete(n for n in listed if n not in needed and _committed(n, newest))

    def _base(self, newest: int) -> int:
        """The oldest manifest to keep: a full one."""
        window = newest - self._retain + 1
        while len(self._fulls) > 1 and self._fulls[1] <= window:
            self._fulls.pop(0)
        return self._fulls[0]

    def _advance(self, base: int) -> int:
        """Makes a newer full manifest the oldest one kept."""
        assert self._oldest is not None
        named = self._oldest.live_files() | self._added(self._oldest.batch, base)
        self._oldest = self._manifests.view_at(base)
        pruned = self._manifests.prune(base)
        failpoints.reach("gc")
        needed = self._oldest.live_files() | self._added(base, self._seen)
        self._brought = {batch: names for batch, names in self._brought.items() if batch >= base}
        return len(pruned) + self._delete(named - needed)

    def _added(self, start: int, stop: int) -> set[str]:
        """The files that the batches after `start`, up to `stop`, brought."""
        return set().union(*(self._brought[batch] for batch in range(start + 1, stop + 1)))

    def _see(self, batches: range, show: Callable[[Manifest], None] | None = None) -> None:
        """Notes what batches brought, so that nothing is read a second time."""
        for batch in batches:
            manifest = self._manifests.read(batch)
            if show is not None:
                show(manifest)
            if manifest.full:
                self._fulls.append(batch)
            names = {carried.name for carried in manifest.carry}
            names.update(dead.name for dead in manifest.dead_lists)
            names.update(copy.name for copy in manifest.sources)
            for part in manifest.operators.values():
                if part.assigned is not None and part.assigned.name:
                    names.add(part.assigned.name)
                names.update(run.name for run in part.runs[len(part.runs) - part.new :])
            self._brought[batch] = frozenset(names)
            self._seen = batch

    def _delete_outdated(self, newest: int) -> int:
        """Removes the prepared output of batches that are older than those kept."""
        oldest = newest - self._retain + 1
        names: list[str] = []
        directories: set[str] = set()
        for name in self._files.list(_OUT):
            # Spark names the files; the batch is in the name of their directory.
            top = "/".join(name.split("/")[:2])
            batch = batch_of(top)
            if batch is not None and batch < oldest:
                names.append(name)
                if top != name:
                    directories.add(top)
        removed = self._delete(names)
        for directory in directories:
            self._files.delete_directory(directory)
        return removed

    def _delete_leftovers(self) -> None:
        """Removes what a batch that was killed has begun and nobody names: lists of files that
        are needed no longer than it takes to read them, and directories without a file.
        """
        for directory in self._files.directories(_OUT):
            if directory.endswith(LISTING) or not self._files.list(directory):
                self._files.delete_directory(directory)

    def _delete(self, names: Iterable[str]) -> int:
        ordered = sorted(names)
        for start in range(0, len(ordered), _DELETED_TOGETHER):
            self._files.delete(ordered[start : start + _DELETED_TOGETHER])
            failpoints.reach("gc")
        return len(ordered)


def _committed(name: str, newest: int) -> bool:
    batch = batch_of(intended(name) or name)
    return batch is not None and batch <= newest
