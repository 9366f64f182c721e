"""A migration's state machine: whatever happens, it ends, and channels have somewhere to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braided.migrate.machine import Machine, Phase
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

FOUR = {"1": "a", "2": "b", "3": "c", "4": "d"}
IN = ExecutorMove(frozenset("12"), frozenset("34"), 0)
OUT = ExecutorMove(frozenset("12"), frozenset(), 2)


def ids(text: str) -> frozenset[str]:
    return frozenset(text)


def seen(text: str) -> Seen:
    return Seen({id: f"h{id}" for id in text})


class TestTheUsualWay:
    def test_dcr_in_drains_the_batch_before_anything_moves(self) -> None:
        machine = Machine(Strategy.DCR, IN, Seen(FOUR), is_running=True)
        assert machine.begin() == [Prepare(ids("12"))]
        assert machine.on(ExecutorsReady(ids("12"))) == [PauseBatches()]
        assert machine.on(Seen(FOUR)) == []
        assert machine.on(BatchEnded(False)) == [Confine(ids("12")), Resume()]
        assert machine.on(BatchBegan(True)) == []
        assert machine.on(BatchEnded(True)) == [Kill(ids("34"), 2)]
        assert machine.on(seen("12")) == [End(MigrationOutcome.DONE)]
        assert machine.on(seen("12")) == []

    def test_ccr_ends_the_running_batch_early_and_prepares_meanwhile(self) -> None:
        machine = Machine(Strategy.CCR, IN, Seen(FOUR), is_running=True)
        assert machine.begin() == [PauseBatches(), CutBatch(), Prepare(ids("12"))]
        assert machine.on(BatchEnded(False)) == []
        assert machine.on(ExecutorsReady(ids("12"))) == [Confine(ids("12")), CarryFirst(), Resume()]

    def test_ccr_that_is_prepared_first_waits_for_the_batch(self) -> None:
        machine = Machine(Strategy.CCR, IN, Seen(FOUR), is_running=True)
        machine.begin()
        assert machine.on(ExecutorsReady(ids("12"))) == []
        assert machine.on(BatchEnded(False)) == [Confine(ids("12")), CarryFirst(), Resume()]

    def test_ccr_between_two_batches_has_nothing_to_cut(self) -> None:
        machine = Machine(Strategy.CCR, IN, Seen(FOUR), is_running=False)
        assert machine.begin() == [PauseBatches(), Prepare(ids("12"))]
        assert machine.on(ExecutorsReady(ids("12"))) == [Confine(ids("12")), CarryFirst(), Resume()]

    def test_out_waits_for_the_newcomers_and_keeps_those_that_were_there(self) -> None:
        machine = Machine(Strategy.CCR, OUT, seen("12"), is_running=True)
        assert machine.begin() == [Request(4)]
        assert machine.on(seen("123")) == []
        assert machine.on(seen("1234")) == [PauseBatches(), CutBatch(), Prepare(ids("1234"))]
        machine.on(BatchEnded(False))
        assert machine.on(ExecutorsReady(ids("1234"))) == [
            Confine(ids("1234")),
            CarryFirst(),
            Resume(),
        ]
        assert machine.on(BatchEnded(True)) == [End(MigrationOutcome.DONE)]

    def test_dsm_kills_first_and_asks_for_what_is_missing(self) -> None:
        everybody = ExecutorMove(frozenset(), ids("1234"), 4)
        machine = Machine(Strategy.DSM, everybody, Seen(FOUR), is_running=True)
        assert machine.begin() == [Kill(ids("1234"), 4)]
        assert machine.on(seen("567")) == []
        assert machine.on(seen("5678")) == [Confine(ids("5678"))]
        assert machine.on(BatchEnded(True)) == [End(MigrationOutcome.DONE)]

    def test_newcomers_on_other_hosts_than_the_wanted_do_not_count(self) -> None:
        move = ExecutorMove(ids("1"), ids("2"), 1, frozenset({"h1", "h9"}))
        machine = Machine(Strategy.DCR, move, seen("12"), is_running=False)
        machine.begin()
        assert machine.on(seen("123")) == []
        assert machine.on(seen("1239")) == [Prepare(ids("19"))]

    def test_two_newcomers_on_one_host_are_not_one_on_each(self) -> None:
        move = ExecutorMove(frozenset(), ids("1"), 2, frozenset({"a", "b"}))
        machine = Machine(Strategy.DCR, move, Seen({"1": "x"}), is_running=False)
        machine.begin()
        there = {"1": "x", "2": "a", "3": "a"}
        assert machine.on(Seen(there)) == []
        assert machine.on(Seen({**there, "4": "b"})) == [Prepare(ids("234"))]

    @pytest.mark.parametrize("strategy", Strategy)
    def test_newcomers_on_other_hosts_leave_again(self, strategy: Strategy) -> None:
        move = ExecutorMove(ids("1"), frozenset(), 1, frozenset({"h1", "h9"}))
        machine = Machine(strategy, move, seen("1"), is_running=False)
        machine.begin()
        machine.on(seen("139"))
        machine.on(ExecutorsReady(ids("19")))
        assert machine.phase is Phase.MOVED
        assert machine.on(BatchEnded(True)) == [Kill(ids("3"), 2)]
        assert machine.on(seen("139")) == []
        assert machine.on(seen("19")) == [End(MigrationOutcome.DONE)]

    def test_who_was_to_leave_and_is_lost_is_not_replaced(self) -> None:
        machine = Machine(Strategy.DCR, IN, Seen(FOUR), is_running=False)
        machine.begin()
        machine.on(ExecutorsReady(ids("12")))
        machine.on(seen("12"))
        assert machine.on(BatchEnded(True)) == [Request(2), End(MigrationOutcome.DONE)]


class TestWhenSomethingGoesWrong:
    def test_an_executor_that_is_lost_before_the_move_is_waited_for_again(self) -> None:
        machine = Machine(Strategy.DCR, OUT, seen("12"), is_running=True)
        machine.begin()
        machine.on(seen("1234"))
        machine.on(ExecutorsReady(ids("1234")))
        assert machine.on(seen("123")) == [Request(4), Resume()]
        assert machine.on(seen("1235")) == [Prepare(ids("1235"))]

    def test_one_more_that_comes_is_prepared_too(self) -> None:
        machine = Machine(Strategy.DCR, OUT, seen("12"), is_running=False)
        machine.begin()
        assert machine.on(seen("1234")) == [Prepare(ids("1234"))]
        assert machine.on(seen("12345")) == [Prepare(ids("12345"))]
        assert machine.on(ExecutorsReady(ids("1234"))) == []
        assert machine.on(ExecutorsReady(ids("12345")))[0] == PauseBatches()

    def test_executors_that_are_refused_are_not_moved_to(self) -> None:
        machine = Machine(Strategy.DCR, OUT, seen("12"), is_running=False)
        machine.begin()
        machine.on(seen("1234"))
        missed = ExecutorsReady(ids("123"), ids("4"))
        for _ in range(4):  # it may not have been reached
            assert machine.on(missed) == [Prepare(ids("1234"))]
        assert machine.on(missed) == machine.on(seen("1234")) == []
        assert machine.on(TimeUp())[0] == Confine(None)

    def test_ccr_does_not_wait_with_batches_for_those_that_are_refused(self) -> None:
        machine = Machine(Strategy.CCR, OUT, seen("12"), is_running=True)
        machine.begin()
        machine.on(seen("1234"))
        missed = ExecutorsReady(ids("123"), ids("4"))
        assert machine.on(missed) == [Resume(), Prepare(ids("1234"))]
        assert machine.on(BatchEnded(False)) == []
        assert machine.on(ExecutorsReady(ids("1234"))) == [
            PauseBatches(),
            Confine(ids("1234")),
            CarryFirst(),
            Resume(),
        ]

    def test_nor_for_long_for_those_that_are_not_ready(self) -> None:
        machine = Machine(Strategy.CCR, OUT, seen("12"), is_running=True)
        machine.begin()
        machine.on(seen("1234"))
        machine.on(BatchEnded(False))
        assert machine.on(PausedLong()) == [Resume()]
        assert machine.on(PausedLong()) == []
        machine.on(BatchBegan(False))
        assert machine.on(ExecutorsReady(ids("1234"))) == [PauseBatches(), CutBatch()]
        assert machine.on(PausedLong()) == []  # it is the batch that is waited for
        assert machine.on(BatchEnded(False)) == [Confine(ids("1234")), CarryFirst(), Resume()]

    def test_time_that_is_up_takes_everything_back(self) -> None:
        machine = Machine(Strategy.CCR, OUT, seen("12"), is_running=True)
        machine.begin()
        machine.on(seen("1234"))
        machine.on(ExecutorsReady(ids("1234")))
        assert machine.on(TimeUp()) == [
            Confine(None),
            Kill(ids("34"), 2),
            Resume(),
            End(
                MigrationOutcome.UNDONE,
                "the running batch did not end, or the new executors were not ready in time",
            ),
        ]

    def test_what_dsm_has_killed_is_asked_for_again(self) -> None:
        machine = Machine(Strategy.DSM, IN, Seen(FOUR), is_running=True)
        assert machine.begin() == [Kill(ids("34"), 2), Confine(ids("12"))]
        undone = machine.on(TimeUp())
        assert undone[:2] == [Confine(None), Request(4)]

    def test_newcomers_stay_for_those_that_are_lost_and_no_more(self) -> None:
        machine = Machine(Strategy.DCR, OUT, seen("12"), is_running=False)
        machine.begin()
        machine.on(seen("156"))
        assert machine.on(TimeUp())[:2] == [Confine(None), Kill(ids("6"), 2)]

    def test_what_fails_is_undone_until_it_has_moved(self) -> None:
        machine = Machine(Strategy.DCR, OUT, seen("12"), is_running=True)
        machine.begin()
        machine.on(seen("1234"))
        machine.on(ExecutorsReady(ids("1234")))
        assert machine.on(StepFailed("so it is")) == [
            Confine(None),
            Kill(ids("34"), 2),
            Resume(),
            End(MigrationOutcome.UNDONE, "so it is"),
        ]
        machine = Machine(Strategy.DCR, IN, Seen(FOUR), is_running=False)
        machine.begin()
        machine.on(ExecutorsReady(ids("12")))
        machine.on(BatchEnded(True))
        assert machine.on(StepFailed("so it is")) == [End(MigrationOutcome.DONE, "so it is")]

    def test_a_query_that_stops_is_not_left_paused(self) -> None:
        machine = Machine(Strategy.DCR, IN, Seen(FOUR), is_running=True)
        machine.begin()
        machine.on(ExecutorsReady(ids("12")))
        assert machine.on(StopAsked()) == [
            Resume(),
            End(MigrationOutcome.STOPPED, "the query was stopped"),
        ]


# -- whatever order events come in ---------------------------------------------------------

executors = st.frozensets(st.sampled_from("12345678"), max_size=8)
events: st.SearchStrategy[Event] = st.one_of(
    executors.map(lambda there: Seen({id: f"h{id}" for id in there})),
    st.builds(ExecutorsReady, executors, executors),
    st.booleans().map(BatchBegan),
    st.booleans().map(BatchEnded),
    st.sampled_from([PausedLong(), TimeUp(), StopAsked(), StepFailed("")]),
)


@st.composite
def moves(draw: st.DrawFn) -> ExecutorMove:
    stay = draw(st.frozensets(st.sampled_from("1234")))
    come = draw(st.integers(0 if stay else 1, 4))
    hosts = draw(st.none() | st.frozensets(st.sampled_from("12345678").map("h{}".format)))
    return ExecutorMove(stay, frozenset("1234") - stay, come, hosts)


class World:
    """Does what a machine says, and looks that nothing is done that must not be."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.there = frozenset("1234")
        self.confined_to: frozenset[str] | None = None
        self.is_paused = False
        self.wanted: int | None = None
        """How many executors there are to be; None while nobody has said it."""
        self.ends: list[End] = []

    def do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            assert not self.ends, "it goes on after its end"
            if isinstance(instruction, Kill):
                self.kill(instruction.executors)
                self.wanted = instruction.total
            elif isinstance(instruction, Confine):
                self.confined_to = instruction.executors
                assert instruction.executors is None or instruction.executors & self.there
            elif isinstance(instruction, PauseBatches):
                assert not self.is_paused
                self.is_paused = True
            elif isinstance(instruction, Resume):
                assert self.is_paused
                self.is_paused = False
            elif isinstance(instruction, Request):
                self.wanted = instruction.total
            elif isinstance(instruction, End):
                self.ends.append(instruction)

    def kill(self, going: frozenset[str]) -> None:
        first = self.strategy is Strategy.DSM and self.confined_to is None
        if not first:
            assert self.there - going, "nobody is left to own a slot"
            assert self.confined_to is None or not going & self.confined_to


@given(strategy=st.sampled_from(Strategy), move=moves(), running=st.booleans(), data=st.data())
def test_it_ends_and_never_with_a_slot_owned_by_nobody(
    strategy: Strategy, move: ExecutorMove, running: bool, data: st.DataObject
) -> None:
    world = World(strategy)
    machine = Machine(strategy, move, seen("1234"), running)
    world.do(machine.begin())
    for event in data.draw(st.lists(events, max_size=30)):
        if isinstance(event, Seen):
            world.there = frozenset(event.executors)
        world.do(machine.on(event))
    world.do(machine.on(TimeUp()))
    assert machine.phase is Phase.ENDED
    assert len(world.ends) == 1
    assert not world.is_paused, "batches would never begin again"
    if world.ends[0].outcome is MigrationOutcome.UNDONE:
        assert world.confined_to is None
        assert world.wanted == 4
    if world.ends[0].outcome is MigrationOutcome.DONE:
        # Who is lost from now on is replaced, and who was let go is not.
        assert world.wanted in (None, len(move.stay) + move.come)
        assert world.wanted is not None or not move.leave


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("move", [IN, OUT])
def test_a_world_that_does_as_it_is_told_comes_to_the_end(
    strategy: Strategy, move: ExecutorMove
) -> None:
    there = set("12" if move is OUT else "1234")
    machine = Machine(strategy, move, seen("".join(there)), is_running=True)
    waiting: list[Instruction] = machine.begin()
    newcomers = iter("56789")
    for _ in range(20):
        following: list[Instruction] = []
        for instruction in waiting:
            if isinstance(instruction, Request):
                while len(there) < instruction.total:
                    there.add(next(newcomers))
            elif isinstance(instruction, Kill):
                there -= instruction.executors
            elif isinstance(instruction, Prepare):
                following += machine.on(ExecutorsReady(instruction.executors))
            elif isinstance(instruction, End):
                assert instruction.outcome is MigrationOutcome.DONE
                assert machine.destination == there
                return
        following += machine.on(seen("".join(there)))
        following += machine.on(BatchEnded(machine.phase is Phase.MOVED))
        waiting = following
    raise AssertionError("it did not end")
