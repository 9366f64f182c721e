"""The three strategies as one state machine: events in, instructions out.

    phase        waits for                       then
    COMING       executors that are to come      prepare (DSM: move; CCR: on to ENDING, too)
    PREPARING    workers and slots there         pause
    ENDING       the running batch, committed    move: channels are confined, batches resume
    MOVED        a batch on the new executors    the old ones are let go
    LEAVING      the old ones to be gone         end

DSM begins with the kill: it has no PREPARING and no ENDING, and the batch in flight is done again
by whoever is there. DCR prepares before it pauses, so that little time is without output; CCR is to
be there soonest, so it cuts the running batch at once and prepares meanwhile. If somebody can't be
prepared then, or that takes long, batches resume until all are. A phase with nothing to wait for is
passed through. Executors that are lost before the move are waited for again. When time is up before
a batch has run on the new executors, all is as it was: channels are free to go back, and the
newcomers are let go.
"""

from __future__ import annotations

from enum import Enum

from braided.migrate.steps import (
    BatchBegan,
    BatchEnded,
    Confine,
    Cut,
    End,
    Event,
    Instruction,
    Kill,
    Move,
    Outcome,
    Pause,
    PausedLong,
    Prepare,
    Prepared,
    Request,
    Resume,
    Seen,
    StopAsked,
    Strategy,
    TimeUp,
)

__all__ = ["Machine", "Phase"]

_TRIES = 5
"""How often executors are made ready that do not become it."""


class Phase(Enum):
    COMING = "coming"
    PREPARING = "preparing"
    ENDING = "ending"
    MOVED = "moved"
    LEAVING = "leaving"
    ENDED = "ended"


class Machine:
    """One migration. `begin` and `on` say what is to be done; nothing else changes it."""

    def __init__(self, strategy: Strategy, move: Move, seen: Seen, is_running: bool) -> None:
        """`is_running`: whether a batch is."""
        self.strategy = strategy
        self.move = move
        self.phase = Phase.COMING
        self._before = frozenset(seen.executors)
        """The executors that there were when it was asked for."""
        self._there = dict(seen.executors)
        self._is_running = is_running
        self._is_paused = False
        self._asked_for: frozenset[str] = frozenset()
        self._prepared: frozenset[str] = frozenset()
        self._tries = 1
        self._cuts_at_once = strategy is Strategy.CCR

    def begin(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        if self.strategy is Strategy.DSM and self.move.leave:
            instructions.append(Kill(self.move.leave))
        if self.move.come or self.strategy is Strategy.DSM:
            kept = self.move.stay if self.strategy is Strategy.DSM else self._before
            instructions.append(Request(len(kept) + self.move.come))
        return instructions + self._go_on()

    def on(self, event: Event) -> list[Instruction]:
        """What follows from an event; nothing once it has ended."""
        if self.phase is Phase.ENDED:
            return []
        if isinstance(event, Seen):
            return self._see(event)
        if isinstance(event, Prepared):
            self._prepared |= event.executors
            self._ask_again(event.missed)
            return self._not_prepared() if self._is_held_up() else self._go_on()
        if isinstance(event, PausedLong):
            return self._not_prepared() if self._is_held_up() else []
        if isinstance(event, BatchBegan):
            self._is_running = True
            return []
        if isinstance(event, BatchEnded):
            self._is_running = False
            return self._moved_on() if event.confined else self._go_on()
        if isinstance(event, TimeUp):
            return self._time_up()
        assert isinstance(event, StopAsked)
        return self._end(Outcome.STOPPED, "the query was stopped")

    @property
    def destination(self) -> frozenset[str]:
        """The executors that are there and that it goes to."""
        return frozenset(
            id
            for id, host in self._there.items()
            if id in self.move.stay
            or (id not in self._before and (self.move.hosts is None or host in self.move.hosts))
        )

    # -- phases ----------------------------------------------------------------------------

    def _see(self, event: Seen) -> list[Instruction]:
        self._there = dict(event.executors)
        if self.phase in (Phase.PREPARING, Phase.ENDING) and not self._is_there():
            # One that was there is lost. Nothing has moved, so there is nothing to take back.
            self.phase = Phase.COMING
            again: list[Instruction] = [Request(len(self._before) + self.move.come)]
            return again + self._resumed()
        if self.phase is Phase.MOVED and not self.destination:
            return self._end(Outcome.UNDONE, "all executors that it went to are lost")
        return self._go_on()

    def _go_on(self) -> list[Instruction]:
        """Passes through all phases that have nothing to wait for."""
        instructions: list[Instruction] = []
        if self.phase is Phase.COMING and self._is_there():
            if self.strategy is Strategy.DSM:
                return self._to_destination()
            self.phase = Phase.PREPARING
        if self.phase is Phase.PREPARING and (self._is_prepared() or self._cuts_at_once):
            self.phase = Phase.ENDING
            self._is_paused = True
            instructions.append(Pause())
            if self._is_running and self.strategy is Strategy.CCR:
                instructions.append(Cut())
        waits = self.phase in (Phase.PREPARING, Phase.ENDING)
        if waits and self.destination - self._asked_for:
            # One more may have come since the others were asked for.
            instructions.append(Prepare(self.destination))
            self._asked_for |= self.destination
        if self.phase is Phase.ENDING and not self._is_running and self._is_prepared():
            instructions += self._to_destination()
        if self.phase is Phase.LEAVING and not self.move.leave & self._there.keys():
            instructions += self._end(Outcome.DONE)
        return instructions

    def _ask_again(self, missed: frozenset[str]) -> None:
        """A busy machine has Spark run elsewhere what should make an executor ready, so it is tried
        a few times.
        """
        if missed and self._tries < _TRIES:
            self._tries += 1
            self._asked_for -= missed

    def _is_held_up(self) -> bool:
        """Whether batches are paused for executors that are not ready for channels."""
        return self.phase is Phase.ENDING and not self._is_prepared()

    def _not_prepared(self) -> list[Instruction]:
        self.phase, self._cuts_at_once = Phase.PREPARING, False
        return [*self._resumed(), *self._go_on()]

    def _to_destination(self) -> list[Instruction]:
        self.phase = Phase.MOVED
        return [Confine(self.destination), *self._resumed()]

    def _moved_on(self) -> list[Instruction]:
        """A batch has run where it should."""
        if self.phase is not Phase.MOVED:
            return self._go_on()
        self.phase = Phase.LEAVING
        leaving = self.move.leave & self._there.keys()
        kill: list[Instruction] = [Kill(leaving)] if leaving else []
        return kill + self._go_on()

    def _time_up(self) -> list[Instruction]:
        if self.phase is Phase.LEAVING:
            return self._end(Outcome.DONE, "executors that were to leave have not gone yet")
        waited_for = {
            Phase.COMING: "executors did not come",
            Phase.PREPARING: "the new executors were not ready",
            Phase.ENDING: "the running batch did not end, or the new executors were not ready",
            Phase.MOVED: "no batch has ended on the new executors",
        }
        return self._end(Outcome.UNDONE, f"{waited_for[self.phase]} in time")

    def _end(self, outcome: Outcome, why: str = "") -> list[Instruction]:
        instructions: list[Instruction] = []
        if outcome is Outcome.UNDONE:
            # What DSM has killed does not come back as it was, but there is as much of it.
            instructions += [Confine(None), Request(len(self._before))]
            newcomers = frozenset(self._there.keys() - self._before)
            if newcomers and self._before <= self._there.keys():
                instructions.append(Kill(newcomers))
        instructions += self._resumed()
        self.phase = Phase.ENDED
        return [*instructions, End(outcome, why)]

    def _resumed(self) -> list[Instruction]:
        if not self._is_paused:
            return []
        self._is_paused = False
        return [Resume()]

    def _is_there(self) -> bool:
        wanted = self.move.come + len(self.move.stay)
        return len(self.destination) >= max(1, wanted)

    def _is_prepared(self) -> bool:
        return self.destination <= self._prepared
