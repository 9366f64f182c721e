"""What a batch made true: the manifest's values, and the view that follows from applying them.

A manifest is one record of a versioned register. Applying manifest v to the view at v-1 gives the
view at v; it is a pure function that either gives a new view or raises, and it costs what the
manifest says, not what there is.

State is a chain of runs per slot (`chains.py`). A delta lists the runs of its own batch, snapshots
first. A full manifest lists every other live run too, in the order in which they were first
applied: before its own, packed (`packed_runs.py`), so that a reader who has v-1 applies just its
own, and one who has nothing applies them all. In format 1 they stood at the beginning of `runs`,
and `new` says how many at the end are the batch's own. Dead slots inside a live run do no harm: the
run that restarted them is live itself and comes later.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from braided.errors import CheckpointCorruptError
from braided.store.history.chains import AppliedRun, Chains, Link
from braided.store.history.packed_runs import pack_runs, unpack_runs
from braided.store.history.runs import RunFile
from braided.store.history.slot_sets import decode_slots

__all__ = [
    "FORMAT",
    "NO_FILE",
    "ORDINALS",
    "AssignedFile",
    "CarryFile",
    "DeadFile",
    "DeadList",
    "Manifest",
    "OperatorMeta",
    "OperatorPart",
    "OperatorVersion",
    "PinnedKey",
    "Prepared",
    "SourceEntry",
    "View",
    "decode_table",
    "encode_table",
    "format_of",
    "problems",
    "to_full",
]

FORMAT = 5
"""The newest format that this Braided reads. Since 2, runs have an index, full manifests pack what
is older, and many dead files are named in lists; 1 is read too. In 3, changelogs of merged keys
follow those of tasks; in 4, keys are assigned to slots; in 5, operators are dropped. A manifest is
written as the least that has what is in it (`format_of`), so that an earlier Braided reads it if it
can.
"""

ORDINALS = 256
"""How many operators a checkpoint can number: a slot's address in caches has a byte for it."""

Table = npt.NDArray[np.int32]
"""The channel of each slot."""


class OperatorMeta(msgspec.Struct, frozen=True):
    """What an operator is, for as long as the checkpoint lives."""

    ordinal: int
    slots: int
    key: str
    state: str
    codec: str
    time_mode: str = "ProcessingTime"
    earlier: tuple[str, ...] = ()
    """What `state` was in the versions before, the first of them first."""

    @property
    def history(self) -> tuple[str, ...]:
        """The state's fields in all versions; a record's first byte counts them from 1."""
        return (*self.earlier, self.state)


class PinnedKey(msgspec.Struct, frozen=True, array_like=True):
    """A key that is not in the slot of its hash, or is split, and the two hashes that its rows are
    known by.
    """

    key: bytes
    hash: int
    check: int
    slot: int
    shares: tuple[int, ...] = ()  # the slots that rows of a split key go to; its state is in `slot`


class AssignedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file with the keys that are assigned to slots (`assigned_keys.py`); no name for none."""

    name: str = ""
    checksum: str = ""  # of the file
    digest: str = ""  # of what it says, by which two assignments are compared
    keys: int = 0


NO_FILE = AssignedFile()


class OperatorPart(msgspec.Struct, frozen=True):
    """What a batch made true of one operator."""

    channels: int
    meta: OperatorMeta | None = None  # None in a delta: as before
    table: str | None = None  # slot -> channel, see encode_table; None in a delta: as before
    epoch: int = 0  # of the routing table
    runs: tuple[RunFile, ...] = ()
    new: int = 0  # how many of the runs, at the end, are this batch's own
    merged: int = 0  # how many of these, at the end, are of keys that the driver has merged
    due: dict[int, int | None] = {}
    keys: int = 0  # in all slots, after the batch
    bytes: int = 0  # likewise
    pins: tuple[PinnedKey, ...] | None = None  # None in a delta: as before
    hosts: tuple[str, ...] | None = None  # of the channels; None in a delta: as before
    behind_ms: int | None = None  # its late watermark, where that is behind the batch's
    carried_ms: int | None = None  # the watermark when the oldest row was new that it has carried
    assigned: AssignedFile | None = None  # None in a delta: as before
    older: str = ""  # in a full manifest the live runs of batches before, see pack_runs


class Prepared(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one sink publishes, in words only that sink understands."""

    sink: str  # what the checkpoint has called the sink from its first batch on
    entries: tuple[str, ...]
    kind: str = ""  # of the sink; manifests of earlier versions have only its name
    target: str = ""  # where its output goes, or a number among others of its kind


class CarryFile(msgspec.Struct, frozen=True):
    """Rows taken in but left for the next batch."""

    operator: str
    name: str
    digest: str
    rows: int


class DeadFile(msgspec.Struct, frozen=True):
    """Rows that were diverted because their operator raised; kept for as long as the checkpoint."""

    operator: str
    name: str
    digest: str  # of keys and rows; what an error says may differ from try to try
    rows: int


class DeadList(msgspec.Struct, frozen=True):
    """A file that names files of diverted rows (`dead_lists.py`)."""

    name: str
    digest: str
    files: int
    level: int  # how often what is in it was merged


class SourceEntry(msgspec.Struct, frozen=True, array_like=True):
    """A copy of what a source of Spark's has noted of its input (`source_entries.py`)."""

    source: int
    entry: int
    name: str
    digest: str


class Manifest(msgspec.Struct, frozen=True):
    """One record of the register."""

    flow: str
    batch: int
    full: bool
    writer: str
    batch_time_ms: int
    watermark_ms: int
    operators: dict[str, OperatorPart]
    outputs: tuple[Prepared, ...] = ()
    carry: tuple[CarryFile, ...] = ()
    dead: tuple[DeadFile, ...] = ()  # in a full manifest all that are in none of the lists
    extra: dict[str, str] = {}
    offsets: str = ""
    """What Spark wrote of the batch before it ran: its times, and where its sources were."""
    format: int = 2
    dead_lists: tuple[DeadList, ...] = ()  # in a full manifest all that there are; in a delta none
    sources: tuple[SourceEntry, ...] = ()  # in a full manifest all that are needed
    dropped: tuple[str, ...] = ()
    """Operators that the flow had up to the batch before, and has no more."""


class OperatorVersion:
    """An operator at a batch. Immutable."""

    __slots__ = (
        "assigned",
        "behind_ms",
        "bytes",
        "carried_ms",
        "chains",
        "channels",
        "due",
        "epoch",
        "hosts",
        "keys",
        "meta",
        "pins",
        "table",
    )

    def __init__(
        self,
        meta: OperatorMeta,
        channels: int,
        table: Table,
        epoch: int,
        chains: Chains,
        due: dict[int, int],
        keys: int,
        bytes: int,
        pins: tuple[PinnedKey, ...] = (),
        hosts: tuple[str, ...] = (),
        behind_ms: int | None = None,
        carried_ms: int | None = None,
        assigned: AssignedFile = NO_FILE,
    ) -> None:
        self.assigned = assigned
        self.behind_ms = behind_ms
        self.carried_ms = carried_ms
        self.pins = pins
        self.hosts = hosts
        self.meta = meta
        self.channels = channels
        self.table = table
        self.epoch = epoch
        self.due = due
        self.keys = keys
        self.bytes = bytes
        self.chains = chains

    @classmethod
    def empty(cls, meta: OperatorMeta) -> OperatorVersion:
        """An operator before its first batch, on one channel."""
        table = np.zeros(meta.slots, dtype=np.int32)
        return cls(meta, 1, table, 0, Chains.empty(meta.slots), {}, 0, 0)

    def starting_with(self, runs: tuple[RunFile, ...]) -> OperatorVersion:
        """The operator with state that its first batch builds on and will name."""
        return self.apply(OperatorPart(self.channels, runs=runs, new=len(runs)), False, False)

    def with_chains(self, chains: Chains) -> OperatorVersion:
        """What a task has to know of the operator: how its slots are made up."""
        return OperatorVersion(
            self.meta,
            self.channels,
            self.table,
            self.epoch,
            chains,
            {},
            0,
            0,
            self.pins,
            self.hosts,
        )

    def links(self, slots: Iterable[int]) -> dict[int, list[Link]]:
        """The chains of slots, newest run first."""
        return self.chains.links(slots)

    def chain(self, slot: int) -> tuple[RunFile, ...]:
        """The runs that make up a slot, oldest first."""
        return tuple(link.run for link in self.chains.links([slot])[slot])[::-1]

    def head(self, slot: int) -> str:
        """The digest of the newest run of a slot: the name of its version. Empty for no runs."""
        return self.chains.head(slot)

    def length(self, slot: int) -> int:
        """How many runs make up a slot."""
        return self.chains.length(slot)

    def live_runs(self) -> list[RunFile]:
        """Every run that some slot needs, in an order that keeps each chain's."""
        return [run for run, _, _ in self.chains.live()]

    def live_files(self) -> set[str]:
        """The names of the runs that some slot needs, and of the file of assigned keys."""
        names = {run.name for run in self.live_runs()}
        return names | {self.assigned.name} if self.assigned.name else names

    def apply(self, part: OperatorPart, full: bool, fresh: bool) -> OperatorVersion:
        """The view after a batch, from a full manifest's part or a delta's.

        `fresh` when this view knows nothing yet and a full part has to tell all.
        """
        if fresh:
            # What the snapshots replaced is not known: the runs before them may be dead, and then
            # they are not listed.
            older = _older_runs(part, self.meta)
            own = [AppliedRun(run, decode_slots(run.slots)) for run in part.runs]
            chains = self.chains.apply([*older, *own])
        else:
            chains = self.chains.following(part.runs[len(part.runs) - part.new :])
        due = {} if full else dict(self.due)
        for slot, ms in part.due.items():
            if ms is None:
                due.pop(slot, None)
            else:
                due[slot] = ms
        meta = part.meta or self.meta
        table = self.table if part.table is None else decode_table(part.table, meta.slots)
        pins = self.pins if part.pins is None else part.pins
        hosts = self.hosts if part.hosts is None else part.hosts
        return OperatorVersion(
            meta,
            part.channels,
            table,
            part.epoch,
            chains,
            due,
            part.keys,
            part.bytes,
            pins,
            hosts,
            part.behind_ms,
            part.carried_ms,
            self.assigned if part.assigned is None else part.assigned,
        )


class View:
    """The flow at a batch. Immutable; `View.empty()` is the flow before its first one."""

    __slots__ = ("batch", "carry", "dead", "dead_lists", "flow", "operators", "sources")

    def __init__(
        self,
        flow: str,
        batch: int,
        operators: Mapping[str, OperatorVersion],
        carry: tuple[CarryFile, ...],
        dead: tuple[DeadFile, ...] = (),
        dead_lists: tuple[DeadList, ...] = (),
        sources: tuple[SourceEntry, ...] = (),
    ) -> None:
        self.flow = flow
        self.batch = batch
        self.operators = dict(operators)
        self.carry = carry
        self.dead = dead
        self.dead_lists = dead_lists
        self.sources = sources

    @classmethod
    def empty(cls) -> View:
        """The flow before its first batch."""
        return cls("", -1, {}, ())

    def apply(self, manifest: Manifest) -> View:
        """The view at the manifest's batch, or CheckpointCorruptError and nothing changed."""
        reasons = problems(self, manifest)
        if reasons:
            raise CheckpointCorruptError(
                f"manifest of batch {manifest.batch} does not continue batch {self.batch}: "
                + "; ".join(reasons)
            )
        return self.followed_by(manifest)

    def followed_by(self, manifest: Manifest) -> View:
        """The view after a manifest that has no `problems`."""
        fresh = self.batch < 0
        operators = dict(self.operators)
        for name, part in manifest.operators.items():
            before = operators.get(name)
            if before is None:
                assert part.meta is not None  # problems() has looked
                before = OperatorVersion.empty(part.meta)
            operators[name] = before.apply(part, manifest.full, fresh)
        for name in manifest.dropped:
            operators.pop(name, None)
        dead = manifest.dead if manifest.full else (*self.dead, *manifest.dead)
        lists = manifest.dead_lists if manifest.full else self.dead_lists
        sources = manifest.sources if manifest.full else (*self.sources, *manifest.sources)
        return View(manifest.flow, manifest.batch, operators, manifest.carry, dead, lists, sources)

    def with_dead(self, dead: tuple[DeadFile, ...], lists: tuple[DeadList, ...]) -> View:
        """The view with the same files of diverted rows, named in another way."""
        return View(self.flow, self.batch, self.operators, self.carry, dead, lists, self.sources)

    def with_sources(self, sources: tuple[SourceEntry, ...]) -> View:
        """The view with other copies of what sources have noted."""
        return View(
            self.flow,
            self.batch,
            self.operators,
            self.carry,
            self.dead,
            self.dead_lists,
            sources,
        )

    def live_files(self) -> set[str]:
        """Every file that the state or the carry of this view needs, its lists of dead files, and
        its copies of what sources have noted.

        Not the dead files themselves, which are kept for good (`dead_lists.py`).
        """
        names = {carried.name for carried in self.carry}
        names.update(dead.name for dead in self.dead_lists)
        names.update(copy.name for copy in self.sources)
        return names.union(*(operator.live_files() for operator in self.operators.values()))


def to_full(view: View, delta: Manifest) -> Manifest:
    """The full manifest that says what `delta` says and all that still holds from `view`.

    The first manifest of a flow is always a full one: `to_full(View.empty(), delta)`.
    """
    operators = {}
    # A first delta reads as a full one that has nothing else to list.
    source = msgspec.structs.replace(delta, full=True) if view.batch < 0 else delta
    for name, after in view.apply(source).operators.items():
        part = delta.operators.get(name)
        own = () if part is None else part.runs[len(part.runs) - part.new :]
        live = after.chains.live()
        operators[name] = OperatorPart(
            channels=after.channels,
            meta=after.meta,
            table=encode_table(after.table),
            epoch=after.epoch,
            runs=own,
            new=len(own),
            merged=0 if part is None else part.merged,
            due=dict(after.due),
            keys=after.keys,
            bytes=after.bytes,
            pins=after.pins,
            hosts=after.hosts,
            behind_ms=after.behind_ms,
            carried_ms=after.carried_ms,
            assigned=after.assigned,
            older=_packed(live[: len(live) - len(own)], after.table),
        )
    return msgspec.structs.replace(
        delta,
        full=True,
        format=format_of(operators),
        operators=operators,
        dead=(*view.dead, *delta.dead),
        dead_lists=view.dead_lists,
        sources=(*view.sources, *delta.sources),
    )


def format_of(operators: Mapping[str, OperatorPart], dropped: Sequence[str] = ()) -> int:
    """The format of a manifest that says so much."""
    parts = operators.values()
    if dropped:
        return 5
    if any(part.assigned is not None and part.assigned.name for part in parts):
        return 4
    return 3 if any(part.merged for part in parts) else 2


def _packed(runs: list[AppliedRun], table: Table) -> str:
    return pack_runs(runs, table) if runs else ""


def _older_runs(part: OperatorPart, meta: OperatorMeta) -> list[AppliedRun]:
    """What a full part says of the batches before its own."""
    runs = unpack_runs(part.older) if part.older else []
    if any(not run.slots.size or run.slots[-1] >= meta.slots for run in runs):
        raise CheckpointCorruptError("a full manifest lists a run of a slot that is not there")
    return runs


def problems(view: View, manifest: Manifest) -> list[str]:
    """Why a manifest may not follow a view, one sentence each; none if it may."""
    reasons = []
    if view.batch < 0 and not manifest.full:
        reasons.append("the first manifest of a flow must be a full one")
    if view.batch >= 0 and manifest.batch != view.batch + 1:
        reasons.append(f"batch {manifest.batch} does not follow batch {view.batch}")
    if view.batch >= 0 and manifest.flow != view.flow:
        reasons.append(f"flow {manifest.flow} is not flow {view.flow}")
    named = manifest.operators.keys() | set(manifest.dropped)
    if manifest.operators.keys() & set(manifest.dropped):
        reasons.append("an operator is dropped and goes on")
    if manifest.full and not view.operators.keys() <= named:
        reasons.append("a full manifest must name every operator")
    if manifest.full and _dead_named(manifest) < _dead_named(view):
        reasons.append("a full manifest must name every file of diverted rows")
    ordinals = {o.meta.ordinal: name for name, o in view.operators.items()}
    for name, part in manifest.operators.items():
        before = view.operators.get(name)
        meta = part.meta or (before.meta if before else None)
        if meta is None:
            reasons.append(f"operator {name} is new but is not described")
            continue
        if before is not None and meta.slots != before.meta.slots:
            reasons.append(f"operator {name} has {meta.slots} slots, not {before.meta.slots}")
            continue
        if not 0 <= meta.ordinal < ORDINALS or ordinals.setdefault(meta.ordinal, name) != name:
            reasons.append(f"operator {name} has ordinal {meta.ordinal}, which is not free")
        runs = part.runs if view.batch < 0 else part.runs[len(part.runs) - part.new :]
        reasons += _table_problems(name, part, meta, before)
        reasons += _run_problems(name, part, meta, runs)
        if not manifest.full and part.new != len(part.runs):
            reasons.append(f"operator {name}: all {len(part.runs)} runs of a delta must be new")
    return reasons


def _dead_named(where: Manifest | View) -> int:
    """How many files of diverted rows are named, one by one and in lists."""
    return len(where.dead) + sum(each.files for each in where.dead_lists)


def _table_problems(
    name: str, part: OperatorPart, meta: OperatorMeta, before: OperatorVersion | None
) -> list[str]:
    if part.channels < 1:
        return [f"operator {name} has {part.channels} channels"]
    table = None if before is None else before.table
    if part.table is not None:
        table = decode_table(part.table, meta.slots)
    if table is None or len(table) != meta.slots:
        return [f"operator {name} has no routing table for its {meta.slots} slots"]
    if int(table.max(initial=0)) >= part.channels:
        return [f"operator {name} routes to channel {int(table.max())} of {part.channels}"]
    if part.hosts and len(part.hosts) != part.channels:
        return [f"operator {name} has {len(part.hosts)} hosts for {part.channels} channels"]
    return []


def _run_problems(
    name: str, part: OperatorPart, meta: OperatorMeta, runs: tuple[RunFile, ...]
) -> list[str]:
    reasons = []
    if not 0 <= part.new <= len(part.runs):
        reasons.append(f"operator {name} has {part.new} new runs of {len(part.runs)}")
    pinned_to = {slot for pin in part.pins or () for slot in (pin.slot, *pin.shares)}
    if any(not 0 <= slot < meta.slots for slot in pinned_to):
        reasons.append(f"operator {name} has a key pinned to a slot that is not there")
    if any(not 0 <= slot < meta.slots for slot in part.due):
        reasons.append(f"operator {name} has a timer in a slot that is not there")
    for run in runs:
        slots = decode_slots(run.slots)
        if not slots.size or slots[-1] >= meta.slots:
            return [*reasons, f"run {run.name} is of no slot, or of one that is not there"]
    if not 0 <= part.merged <= part.new:
        reasons.append(f"operator {name} has {part.merged} merged runs of {part.new} new ones")
    own = part.runs[len(part.runs) - part.new :]
    merged = own[part.new - part.merged :]
    if any(run.snapshot for run in merged) or not _are_apart(merged, meta.slots):
        reasons.append(f"operator {name} has a key merged twice, or in a snapshot")
    own = own[: part.new - part.merged]
    if _are_apart(own, meta.slots):
        return reasons
    logged = np.zeros(meta.slots, dtype=bool)
    snapped = np.zeros(meta.slots, dtype=bool)
    for run in own:
        said = snapped if run.snapshot else logged
        slots = decode_slots(run.slots)
        if said[slots].any():
            reasons.append(f"run {run.name} repeats a slot of another run of its batch")
        if run.snapshot and logged[slots].any():
            reasons.append(f"snapshot {run.name} comes after a changelog of its own batch")
        said[slots] = True
    return reasons


def _are_apart(runs: tuple[RunFile, ...], slots: int) -> bool:
    """Whether snapshots come first, and no two of them, nor two changelogs, share a slot."""
    kinds = [run.snapshot for run in runs]
    if kinds != sorted(kinds, reverse=True):
        return False
    count = sum(kinds)
    for same in (runs[:count], runs[count:]):
        numbers = [decode_slots(run.slots) for run in same]
        if not numbers:
            continue
        together = np.concatenate(numbers, dtype=np.intp)
        there = np.zeros(slots, dtype=bool)
        there[together] = True
        if np.count_nonzero(there) < len(together):
            return False
    return True


def encode_table(table: npt.ArrayLike) -> str:
    """slot -> channel as base64 of little-endian unsigned 16-bit numbers, 32-bit if they must."""
    numbers = np.asarray(table)
    wide = numbers.size > 0 and int(numbers.max()) >= 1 << 16
    return base64.b64encode(numbers.astype("<u4" if wide else "<u2").tobytes()).decode()


def decode_table(text: str, slots: int) -> Table:
    """The array that `encode_table` wrote, read-only; empty if it is not one for so many slots."""
    data = base64.b64decode(text)
    widths = {2 * slots: "<u2", 4 * slots: "<u4"}
    width = widths.get(len(data))
    table = np.frombuffer(b"" if width is None else data, width or "<u2").astype(np.int32)
    table.setflags(write=False)
    return table
