"""What a migration is told, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = [
    "BatchBegan",
    "BatchEnded",
    "CarryFirst",
    "Confine",
    "CutBatch",
    "End",
    "Event",
    "ExecutorMove",
    "ExecutorsReady",
    "Instruction",
    "Kill",
    "MigrationOutcome",
    "PauseBatches",
    "PausedLong",
    "Prepare",
    "Request",
    "Resume",
    "Seen",
    "StepFailed",
    "StopAsked",
    "Strategy",
    "TimeUp",
]


class Strategy(Enum):
    """How the rows that are in flight are treated."""

    DSM = "dsm"
    """Executors are killed; what they were doing is done again."""
    DCR = "dcr"
    """The running batch is drained first."""
    CCR = "ccr"
    """The running batch is captured: what is not done of it is carried."""


@dataclass(frozen=True)
class ExecutorMove:
    """From which executors to which: those that stay, those that leave, and how many come.

    `hosts`: where newcomers have to be to count, if that matters.
    """

    stay: frozenset[str]
    leave: frozenset[str]
    come: int
    hosts: frozenset[str] | None = None


# -- events --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """The executors that there are, with their hosts."""

    executors: dict[str, str]


@dataclass(frozen=True)
class ExecutorsReady:
    """Executors are ready for channels; of those that were to be, some may not be, because they
    can't or because they were not reached.
    """

    executors: frozenset[str]
    missed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class BatchBegan:
    """A batch begins; `confined` if by tables that name no other hosts than they may."""

    confined: bool


@dataclass(frozen=True)
class BatchEnded:
    """A batch is committed and published."""

    confined: bool


@dataclass(frozen=True)
class PausedLong:
    """Batches have been paused for longer than makes sense to wait for anything but their end."""


@dataclass(frozen=True)
class TimeUp:
    """It has taken longer than it may."""


@dataclass(frozen=True)
class StepFailed:
    """Something that was to be done, or looked at, could not be."""

    why: str


@dataclass(frozen=True)
class StopAsked:
    """The query ends."""


Event = (
    Seen | ExecutorsReady | BatchBegan | BatchEnded | PausedLong | TimeUp | StepFailed | StopAsked
)

# -- instructions --------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """So many executors are wanted in all."""

    total: int


@dataclass(frozen=True)
class Kill:
    """These executors go, and so many are wanted in all from then on."""

    executors: frozenset[str]
    total: int


@dataclass(frozen=True)
class Prepare:
    """Workers are started and slots fetched on these executors, as if channels were there."""

    executors: frozenset[str]


@dataclass(frozen=True)
class PauseBatches:
    """No batch begins."""


@dataclass(frozen=True)
class Resume:
    """Batches begin again."""


@dataclass(frozen=True)
class CutBatch:
    """The running batch ends early."""


@dataclass(frozen=True)
class Confine:
    """From the next batch on, channels are on these executors only; None: wherever they like."""

    executors: frozenset[str] | None


@dataclass(frozen=True)
class CarryFirst:
    """The next batch does what was captured, and leaves what comes in for the one after it."""


class MigrationOutcome(Enum):
    """How a migration ended."""

    DONE = "done"
    UNDONE = "undone"
    STOPPED = "stopped"


@dataclass(frozen=True)
class End:
    """It is over."""

    outcome: MigrationOutcome
    why: str = ""


Instruction = (
    Request | Kill | Prepare | PauseBatches | Resume | CutBatch | Confine | CarryFirst | End
)
