"""What a run does to a query, by a seed: rounds of faults, and commands meanwhile.

Pure: the same seed gives the same plan, and the plan of a longer run begins with that of a shorter
one. Kinds are dealt out from a deck, so that every twenty faults have each of them.

The plan says what and when, not to whom exactly: `pick` chooses among the processes that there are
when it comes to it. That, and what the machine does meanwhile, is not in the seed's hands.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["DECK", "SLOTS", "Command", "Fault", "Kind", "Round", "deal"]


class Kind(StrEnum):
    """What can go wrong, as the run's output calls it."""

    KILL_EXECUTOR = "kill executor"
    KILL_PYTHON = "kill python worker"
    KILL_WORKER = "kill worker"  # a host: it is back after some seconds
    KILL_DRIVER = "kill driver"
    KILL_DRIVER_JVM = "kill driver's JVM"
    KILL_DRIVER_PYTHON = "kill driver's Python"  # its JVM goes right after it
    STOP_EXECUTOR = "stop executor"  # SIGSTOP, and SIGCONT after some seconds
    STOP_PYTHON = "stop python worker"
    STOP_DRIVER = "stop driver"
    TAKE_OVER = "take over"  # a stopped driver wakes up when another has its checkpoint
    FILL_DISK = "fill disk"
    DELETE_CACHE = "delete cache"
    STORE_LATE = "store late"
    STORE_ERRORS = "store errors"
    STORE_SILENT = "store silent"
    STORE_GONE = "store gone"  # connections are reset
    STORE_LOST_ANSWERS = "store loses answers"  # what is asked for happens, and nobody hears of it


DECK: tuple[Kind, ...] = (
    *[Kind.KILL_EXECUTOR, Kind.KILL_EXECUTOR, Kind.KILL_PYTHON, Kind.KILL_PYTHON],
    *[Kind.KILL_WORKER, Kind.KILL_DRIVER, Kind.KILL_DRIVER_JVM, Kind.KILL_DRIVER_PYTHON],
    *[Kind.STOP_EXECUTOR, Kind.STOP_PYTHON, Kind.STOP_DRIVER, Kind.TAKE_OVER],
    *[Kind.FILL_DISK, Kind.DELETE_CACHE, Kind.DELETE_CACHE],
    *[Kind.STORE_LATE, Kind.STORE_ERRORS, Kind.STORE_SILENT, Kind.STORE_GONE],
    Kind.STORE_LOST_ANSWERS,
)
"""How often each comes among so many."""

_AREAS = {
    **dict.fromkeys([Kind.KILL_WORKER], "hosts"),
    **dict.fromkeys([Kind.FILL_DISK], "disks"),
    **dict.fromkeys([kind for kind in Kind if kind.name.startswith("STORE_")], "store"),
    **dict.fromkeys(
        [
            *[Kind.KILL_DRIVER, Kind.KILL_DRIVER_JVM, Kind.KILL_DRIVER_PYTHON],
            *[Kind.STOP_DRIVER, Kind.TAKE_OVER],
        ],
        "driver",
    ),
}
"""What only one fault of a round can be about; the others go together with anything."""

_AFTER_S_MAX = 2.0
_SECONDS = (0.5, 4.0)
CHANNELS_MAX = 6
_EXECUTORS_MAX = 4
_STRATEGIES = ["dsm", "dcr", "ccr"]
SLOTS = 16
_PINNED_KEYS = 3
_ASSIGNED_KEYS = 60
OPERATORS: tuple[str | None, ...] = (None, "bag", "chain", "totals", "milestones")


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    number: int
    kind: Kind
    after_s: float
    """When, from the beginning of its round."""
    seconds: float
    """For how long, for what ends by itself."""
    pick: float
    """Chooses among what there is: 0 is the first, nearly 1 the last."""

    def choose(self, among: Sequence[Any]) -> Any:
        return among[int(self.pick * len(among))]


@dataclass(frozen=True)
class Command:
    """Something that is asked of the query meanwhile: a method of it, and its arguments."""

    after_s: float
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Round:
    """Faults that are in flight together; when all are over, everything is checked."""

    faults: tuple[Fault, ...]
    commands: tuple[Command, ...]


def deal(
    seed: int, faults: int, without: Sequence[Kind] = (), together: int = 3
) -> tuple[Round, ...]:
    """So many faults in rounds of one up to `together`; without kinds that can't be had here."""
    chance = random.Random(seed)
    rounds: list[Round] = []
    numbers = itertools.count(1)
    dealt = 0
    kinds = _kinds(chance, without)
    waiting: list[Kind] = []
    while dealt < faults:
        size = chance.randint(1, together)
        drawn: list[Kind] = []
        while len(drawn) < size:
            # Those that could not go into the last round come first; else the next of the deck.
            kind = next((each for each in waiting if _fits(each, drawn)), None)
            if kind is not None:
                waiting.remove(kind)
                drawn.append(kind)
                continue
            kind = next(kinds)
            (drawn if _fits(kind, drawn) else waiting).append(kind)
        made = tuple(_fault(next(numbers), kind, chance) for kind in drawn)
        commands = tuple(_command(chance) for _ in range(chance.randint(0, 2)))
        rounds.append(Round(made[: faults - dealt], commands))
        dealt += len(made)
    return tuple(rounds)


def _kinds(chance: random.Random, without: Sequence[Kind]) -> Iterator[Kind]:
    deck = [kind for kind in DECK if kind not in without]
    while True:
        yield from chance.sample(deck, len(deck))


def _fits(kind: Kind, drawn: Sequence[Kind]) -> bool:
    area = _AREAS.get(kind)
    return area is None or area not in map(_AREAS.get, drawn)


def _fault(number: int, kind: Kind, chance: random.Random) -> Fault:
    return Fault(
        number=number,
        kind=kind,
        after_s=round(chance.uniform(0, _AFTER_S_MAX), 2),
        seconds=round(chance.uniform(*_SECONDS), 2),
        pick=chance.random(),
    )


# A command of the query's that is to come at random gets a function here that draws its arguments.
_COMMANDS: dict[str, Callable[[random.Random], tuple[Any, ...]]] = {
    "rescale": lambda chance: (chance.randint(1, CHANNELS_MAX), chance.choice(OPERATORS)),
    "rebalance": lambda chance: (chance.choice(OPERATORS),),
    "pin": lambda chance: (*_pinned(chance), chance.randrange(SLOTS)),
    "unpin": lambda chance: _pinned(chance),
    "split": lambda chance: (chance.randrange(_PINNED_KEYS), _shares(chance)),
    "assign": lambda chance: (_assigned(chance), _assigned(chance)),
    "cut": lambda chance: (),
    "migrate": lambda chance: (
        chance.choice(["dsm", "dcr", "ccr"]),
        chance.randint(1, _EXECUTORS_MAX),
    ),
}


def _pinned(chance: random.Random) -> tuple[str, int]:
    """Of so few keys that one is let go that was pinned; those of an aggregation can't be."""
    return chance.choice(["chain", "milestones"]), chance.randrange(_PINNED_KEYS)


def _shares(chance: random.Random) -> list[int]:
    """The slots that the rows of a key go to; none, and it is whole again."""
    return chance.sample(range(SLOTS), chance.choice([0, 2, 5]))


def _assigned(chance: random.Random) -> list[tuple[int, int]]:
    """Keys, some of those that are pinned among them, and the slots that they go to; all others go
    by their hashes again.
    """
    keys = chance.sample(range(_ASSIGNED_KEYS), chance.randint(0, _ASSIGNED_KEYS))
    return [(key, chance.randrange(SLOTS)) for key in keys]


def _command(chance: random.Random) -> Command:
    method = chance.choice(sorted(_COMMANDS))
    after_s = round(chance.uniform(0, 2 * _AFTER_S_MAX), 2)
    return Command(after_s, method, _COMMANDS[method](chance))
