"""The three strategies as one state machine: events in, instructions out.

    phase        waits for                       then
    COMING       executors that are to come      prepare (DSM: move; CCR: on to ENDING, too)
    PREPARING    workers and slots there         pause
    ENDING       the running batch, committed    move: channels are confined, batches resume
    MOVED        a batch on the new executors    the old ones are let go
    LEAVING      the old ones to be gone         end

DSM begins with the kill: it has no PREPARING and no ENDING, and the batch in flight is done again
by whoever is there. DCR prepares before it pauses, so that little time is without output; CCR is to
be there soonest, so it cuts the running batch at once and prepares meanwhile, and the first batch
on the new executors does what was captured and nothing else. If somebody can't be prepared then, or
that takes long, batches resume until all are. A phase with nothing to wait for is passed through.
Executors that are lost before the move are waited for again. When time is up, or something fails,
before a batch has run on the new executors, all is as it was: channels are free to go back, and the
newcomers are let go, but for those that stand in for executors that are lost.

Whoever lets executors go says how many are wanted from then on, so that one that is lost later is
replaced, and one that was let go is not.
"""

from __future__ import annotations

from enum import Enum

from braided.migrate.steps import (
    BatchBegan,
    BatchEnded,
    CarryFirst,
    Confine,
    CutBatch,
    End,
    Event,
    ExecutorMove,
    ExecutorsReady,
    Instruction,
    Kill,
    MigrationOutcome,
    PauseBatches,
    PausedLong,
    Prepare,
    Request,
    Resume,
    Seen,
    StepFailed,
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

    def __init__(
        self, strategy: Strategy, move: ExecutorMove, seen: Seen, is_running: bool
    ) -> None:
        """`is_running`: whether a batch is."""
        self.strategy = strategy
        self.move = move
        self.phase = Phase.COMING
        self._before = frozenset(seen.executors)
        """The executors that there were when it was asked for."""
        self._there = dict(seen.executors)
        self._killed = move.leave if strategy is Strategy.DSM else frozenset()
        """Those that go at the begin, and may be seen for a moment longer."""
        self._leaving: frozenset[str] = frozenset()
        self._is_running = is_running
        self._is_paused = False
        self._asked_for: frozenset[str] = frozenset()
        self._prepared: frozenset[str] = frozenset()
        self._tries = 1
        self._cuts_at_once = strategy is Strategy.CCR

    def begin(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        if self._killed:
            instructions.append(Kill(self._killed, self._wanted))
        elif self.strategy is Strategy.DSM:
            instructions.append(Request(self._wanted))
        elif self.move.come:
            instructions.append(Request(len(self._before) + self.move.come))
        return instructions + self._go_on()

    def on(self, event: Event) -> list[Instruction]:
        """What follows from an event; nothing once it has ended."""
        if self.phase is Phase.ENDED:
            return []
        if isinstance(event, Seen):
            return self._see(event)
        if isinstance(event, ExecutorsReady):
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
        if isinstance(event, StepFailed):
            return self._give_up(event.why)
        assert isinstance(event, StopAsked)
        return self._end(MigrationOutcome.STOPPED, "the query was stopped")

    @property
    def destination(self) -> frozenset[str]:
        """The executors that are there and that it goes to."""
        return frozenset(
            id
            for id, host in self._there.items()
            if id in self.move.stay
            or (id not in self._before and (self.move.hosts is None or host in self.move.hosts))
        )

    @property
    def _wanted(self) -> int:
        """How many executors there are to be at the end."""
        return max(1, len(self.move.stay) + self.move.come)

    # -- phases ----------------------------------------------------------------------------

    def _see(self, event: Seen) -> list[Instruction]:
        self._there = dict(event.executors)
        if self.phase in (Phase.PREPARING, Phase.ENDING) and not self._is_there():
            # One that was there is lost. Nothing has moved, so there is nothing to take back.
            self.phase = Phase.COMING
            again: list[Instruction] = [Request(len(self._before) + self.move.come)]
            return again + self._resumed()
        if self.phase is Phase.MOVED and not self.destination:
            return self._end(MigrationOutcome.UNDONE, "all executors that it went to are lost")
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
            instructions.append(PauseBatches())
            if self._is_running and self.strategy is Strategy.CCR:
                instructions.append(CutBatch())
        waits = self.phase in (Phase.PREPARING, Phase.ENDING)
        if waits and self.destination - self._asked_for:
            # One more may have come since the others were asked for.
            instructions.append(Prepare(self.destination))
            self._asked_for |= self.destination
        if self.phase is Phase.ENDING and not self._is_running and self._is_prepared():
            instructions += self._to_destination()
        if self.phase is Phase.LEAVING and not self._leaving & self._there.keys():
            instructions += self._end(MigrationOutcome.DONE)
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
        first = [CarryFirst()] if self.strategy is Strategy.CCR else []
        return [Confine(self.destination), *first, *self._resumed()]

    def _moved_on(self) -> list[Instruction]:
        """A batch has run where it should."""
        if self.phase is not Phase.MOVED:
            return self._go_on()
        self.phase = Phase.LEAVING
        # Some may have come to hosts that were not meant.
        there = frozenset(self._there)
        self._leaving = (self.move.leave | (there - self._before - self.destination)) & there
        instructions: list[Instruction] = []
        if self._leaving:
            instructions.append(Kill(self._leaving, self._wanted))
        elif self.move.leave - self._killed:  # lost by themselves: they need not be replaced
            instructions.append(Request(self._wanted))
        return instructions + self._go_on()

    def _time_up(self) -> list[Instruction]:
        waited_for = {
            Phase.LEAVING: "executors that were to leave have not gone",
            Phase.COMING: "executors did not come",
            Phase.PREPARING: "the new executors were not ready",
            Phase.ENDING: "the running batch did not end, or the new executors were not ready",
            Phase.MOVED: "no batch has ended on the new executors",
        }
        return self._give_up(f"{waited_for[self.phase]} in time")

    def _give_up(self, why: str) -> list[Instruction]:
        """It is not waited for any longer; what has moved by now stays where it is."""
        has_moved = self.phase is Phase.LEAVING
        return self._end(MigrationOutcome.DONE if has_moved else MigrationOutcome.UNDONE, why)

    def _end(self, outcome: MigrationOutcome, why: str = "") -> list[Instruction]:
        instructions: list[Instruction] = []
        if outcome is MigrationOutcome.UNDONE:
            # What DSM has killed does not come back as it was, but there is as much of it.
            lost = len(self._killed | (self._before - self._there.keys()))
            going = frozenset(sorted(self._there.keys() - self._before)[lost:])
            total = max(1, len(self._before))
            instructions.append(Confine(None))
            instructions.append(Kill(going, total) if going else Request(total))
        instructions += self._resumed()
        self.phase = Phase.ENDED
        return [*instructions, End(outcome, why)]

    def _resumed(self) -> list[Instruction]:
        if not self._is_paused:
            return []
        self._is_paused = False
        return [Resume()]

    def _is_there(self) -> bool:
        there = self.destination
        has_all_hosts = (self.move.hosts or frozenset()) <= {self._there[id] for id in there}
        return has_all_hosts and len(there) >= self._wanted

    def _is_prepared(self) -> bool:
        return self.destination <= self._prepared
