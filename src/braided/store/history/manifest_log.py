"""The register of manifests: `manifests/00000042.json`, created once, never changed.

Each file holds the manifest, its checksum, and the checksum of the manifest before it. The first
finds damage. The second makes the register a chain, so that a process that still remembers one
history (the checkpoint was restored from a copy meanwhile) notices that the files tell another.

Tasks are told what they need and read no manifest. The driver asks for the view at every batch: it
keeps the view it was last asked for, or has written, and applies only what came after.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import pyarrow as pa

from braided import failpoints
from braided.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    CheckpointVersionError,
    FencedError,
)
from braided.store.durable.store import UNREADABLE, Store
from braided.store.history.assigned_keys import AssignedRows, read_assigned, write_assigned
from braided.store.history.dead_lists import dead_files, listed
from braided.store.history.manifest import (
    FORMAT,
    AssignedFile,
    DeadFile,
    Manifest,
    SourceEntry,
    View,
    problems,
)
from braided.store.history.runs import digest_of
from braided.store.history.source_entries import copy_entries, read_entries

__all__ = ["DIRECTORY", "FULL_EVERY", "ManifestLog"]

DIRECTORY = "manifests"
# A full manifest lets older ones go and bounds what a new process must read.
FULL_EVERY = 32

_NAME = re.compile(r"^manifests/(\d{8,})\.json$")
_VIEWS_REMEMBERED = 16


class _Envelope(msgspec.Struct, frozen=True):
    """What a file holds: a manifest, and what shows that nobody changed or swapped it."""

    checksum: str  # of `previous` and `manifest`, as they stand in the file
    previous: str  # the checksum of the batch before; empty in the first
    manifest: msgspec.Raw


class _Header(msgspec.Struct, frozen=True):
    """What is read of a manifest first: whether this Braided can read the rest."""

    format: int


class _Entry(NamedTuple):
    """A file as it was read and checked."""

    manifest: Manifest
    checksum: str
    previous: str


class _Remembered(NamedTuple):
    """A view, and the checksum that the manifest after it must name."""

    view: View
    checksum: str


_NOTHING = _Remembered(View.empty(), "")

_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_header = msgspec.json.Decoder(_Header).decode
_decode_manifest = msgspec.json.Decoder(Manifest).decode

# (root, flow) -> the view last asked for. Immutable values, so a forked child may inherit them.
_remembered: OrderedDict[tuple[str, str], _Remembered] = OrderedDict()
_lock = threading.Lock()
os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


class ManifestLog:
    """The manifests of one checkpoint."""

    def __init__(self, files: Store) -> None:
        self._files = files
        self._written: _Entry | None = None  # what this one wrote last, which nobody changes

    def batches(self) -> list[int]:
        """The batches that have a manifest, ascending."""
        names = map(_NAME.match, self._files.list(DIRECTORY))
        return sorted(int(name[1]) for name in names if name)

    def newest(self) -> int | None:
        """The last committed batch."""
        return max(self.batches(), default=None)

    def read(self, batch: int) -> Manifest:
        """The manifest of a batch, checked; CheckpointCorruptError if there is none."""
        return self._entry(batch).manifest

    def write(self, manifest: Manifest) -> None:
        """Commits a batch. Writing the same manifest again is no error: it is committed.

        Raises FencedError if another writer has committed the batch differently.
        """
        if manifest.batch < 0:
            raise ValueError(f"batch {manifest.batch} can't be committed")
        before, previous = self._before(manifest)
        reasons = problems(before, manifest)
        if reasons:
            raise ValueError(f"batch {manifest.batch} must not be committed: " + "; ".join(reasons))
        body = msgspec.json.encode(manifest)
        envelope = _Envelope(_checksum(previous, body), previous, msgspec.Raw(body))
        name = _name(manifest.batch)
        data = msgspec.json.encode(envelope)
        failpoints.reach("manifest-writing")
        if self._files.put_if_absent(name, data) or bytes(self._files.get(name)) == data:
            failpoints.reach("manifest-linked")
            self._written = _Entry(manifest, envelope.checksum, previous)
            self._remember(_Remembered(before.followed_by(manifest), envelope.checksum))
            return
        other = self.read(manifest.batch)
        raise FencedError(
            f"{self._files.path(name)} was already written by {other.writer}; this is "
            f"{manifest.writer}. Two queries run on one checkpoint: stop one of them"
        )

    def view_at(self, batch: int, flow: str | None = None) -> View:
        """The flow as it was after a batch; the empty view for batch -1.

        With the flow's id given, the process remembers the view for the next call.
        """
        return self._at(batch, flow).view

    def dead_files(self, view: View) -> tuple[DeadFile, ...]:
        """All files of diverted rows that there are at a view."""
        return dead_files(self._files, view)

    def with_dead_listed(self, view: View, batch: int) -> View:
        """The view to make the full manifest of a batch from: names of dead files that have become
        many are in a list, which is durable now.
        """
        return listed(self._files, view, batch)

    def copy_sources(
        self, batch: int, texts: Mapping[tuple[int, int], str]
    ) -> tuple[SourceEntry, ...]:
        """Copies of what sources have noted, for the manifest of a batch; durable now."""
        return copy_entries(self._files, batch, texts)

    def sources(self, view: View) -> dict[tuple[int, int], str]:
        """What there are copies of at a view, by source and entry."""
        return read_entries(self._files, view.sources)

    def write_assigned(self, operator: str, batch: int, rows: AssignedRows) -> AssignedFile:
        """Keys that are assigned to slots, for the manifest of a batch; durable now."""
        return write_assigned(self._files, operator, batch, rows)

    def read_assigned(self, file: AssignedFile) -> pa.RecordBatch:
        """The keys that a manifest names."""
        return read_assigned(self._files, file)

    def base_of(self, batch: int) -> int:
        """The newest full manifest at or before a batch: where reading its view begins."""
        at = batch
        while not self.read(at).full:
            at -= 1
        return at

    def prune(self, before: int) -> list[int]:
        """Deletes the manifests of the batches before one that is full; says which.

        From the newest back, so that whatever is left when a crash comes between can be read.
        """
        doomed = [batch for batch in self.batches() if batch < before][::-1]
        if doomed and not self.read(before).full:
            raise ValueError(f"manifest {before} is not a full one and needs those before it")
        # With the newest of them gone there is a gap, and nobody looks at what is below.
        self._files.delete(map(_name, doomed[:1]))
        self._files.delete(map(_name, doomed[1:]))
        return doomed

    def _at(self, batch: int, flow: str | None) -> _Remembered:
        if batch < 0:
            return _NOTHING
        if flow is None:
            return self._load(batch)
        key = (self._files.location.text, flow)
        with _lock:
            remembered = _remembered.get(key)
        now = self._advance(remembered, batch) if remembered else None
        if now is None:
            now = self._load(batch)
        if now.view.flow != flow:
            raise CheckpointMismatchError(
                f"{self._files.path(_name(batch))} belongs to flow {now.view.flow}, not to {flow}: "
                f"the checkpoint is another query's, or was replaced while the query ran"
            )
        self._remember(now)
        return now

    def _remember(self, now: _Remembered) -> None:
        key = (self._files.location.text, now.view.flow)
        with _lock:
            _remembered[key] = now
            _remembered.move_to_end(key)
            while len(_remembered) > _VIEWS_REMEMBERED:
                _remembered.popitem(last=False)

    def _before(self, manifest: Manifest) -> _Remembered:
        """What a manifest follows. A flow may start at any batch where nothing is there yet."""
        first = self._written is None and manifest.full
        if first and not self._exists(manifest.batch - 1) and not self.batches():
            return _NOTHING
        return self._at(manifest.batch - 1, manifest.flow)

    def _exists(self, batch: int) -> bool:
        try:
            self._files.get(_name(batch))
        except FileNotFoundError:
            return False
        return True

    def _advance(self, remembered: _Remembered, batch: int) -> _Remembered | None:
        """A remembered view brought forward; None if it is not on the way to `batch`."""
        if remembered.view.batch > batch or remembered.view.batch < batch - FULL_EVERY:
            return None
        if remembered.view.batch == batch:
            return remembered if self._entry(batch).checksum == remembered.checksum else None
        try:
            for following in range(remembered.view.batch + 1, batch + 1):
                entry = self._entry(following)
                if entry.previous != remembered.checksum:
                    return None
                remembered = _Remembered(remembered.view.apply(entry.manifest), entry.checksum)
        except CheckpointCorruptError:
            # A process that was not needed for a while may find the way there collected. Whether
            # something is amiss shows when the view is read from the files alone.
            return None
        return remembered

    def _load(self, batch: int) -> _Remembered:
        """The view at a batch from the files alone."""
        entries = [self._entry(batch)]
        while not entries[-1].manifest.full:
            entries.append(self._entry(entries[-1].manifest.batch - 1))
        view, checksum = View.empty(), entries[-1].previous
        for entry in reversed(entries):
            if entry.previous != checksum:
                name = self._files.path(_name(entry.manifest.batch))
                raise CheckpointCorruptError(
                    f"{name} does not continue the manifest before it: the files are from two "
                    f"histories of the checkpoint. Restore all of {DIRECTORY}/ from one copy"
                )
            view, checksum = view.apply(entry.manifest), entry.checksum
        return _Remembered(view, checksum)

    def _entry(self, batch: int) -> _Entry:
        if self._written is not None and self._written.manifest.batch == batch:
            return self._written
        name = _name(batch)
        try:
            data = self._files.get(name)
        except FileNotFoundError:
            raise self._corrupt(batch, "is missing") from None
        try:
            envelope = _decode_envelope(data)
        except UNREADABLE as error:
            raise self._corrupt(batch, f"can't be read ({error})") from None
        if _checksum(envelope.previous, bytes(envelope.manifest)) != envelope.checksum:
            raise self._corrupt(batch, "is damaged: its checksum does not match")
        version = _decode_header(envelope.manifest).format
        if version > FORMAT:
            raise CheckpointVersionError(
                f"{self._files.path(name)} has format {version}; this Braided reads up to {FORMAT}."
                f" A newer Braided wrote it: use that one, or a newer one still"
            )
        manifest = _decode_manifest(envelope.manifest)
        if manifest.batch != batch:
            raise self._corrupt(batch, f"is the manifest of batch {manifest.batch}")
        return _Entry(manifest, envelope.checksum, envelope.previous)

    def _corrupt(self, batch: int, damage: str) -> CheckpointCorruptError:
        return CheckpointCorruptError(
            f"{self._files.path(_name(batch))} {damage}. It says what batch {batch} committed, for "
            f"all slots. Restore the file from a copy, or start from an older checkpoint"
        )


def _name(batch: int) -> str:
    return f"{DIRECTORY}/{batch:08d}.json"


def _checksum(previous: str, body: bytes) -> str:
    return digest_of(previous.encode() + b"\n" + body)
