"""The plan of a chaos run is a function of its seed, and has every kind of fault in it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from support.chaos.plan import DECK, Fault, Kind, Round, deal

SEEDS = st.integers(0, 2**32)
SIZES = st.integers(1, 120)


def faults_of(rounds: tuple[Round, ...]) -> list[Fault]:
    return [fault for each in rounds for fault in each.faults]


@given(SEEDS, SIZES)
def test_a_seed_has_one_plan_and_as_many_faults_as_asked_for(seed: int, faults: int) -> None:
    rounds = deal(seed, faults)
    assert rounds == deal(seed, faults)
    assert [fault.number for fault in faults_of(rounds)] == list(range(1, faults + 1))
    assert all(each.faults for each in rounds)


@given(SEEDS, SIZES, SIZES)
def test_a_longer_run_begins_as_a_shorter_one(seed: int, faults: int, more: int) -> None:
    assert faults_of(deal(seed, faults + more))[:faults] == faults_of(deal(seed, faults))


@given(SEEDS, st.integers(1, 5), st.sampled_from([(), (Kind.FILL_DISK,)]))
def test_every_kind_comes_soon_and_as_often_as_the_deck_says(
    seed: int, together: int, without: tuple[Kind, ...]
) -> None:
    deck = [kind for kind in DECK if kind not in without]
    decks = 4
    # A fault that does not fit its round waits for a later one; few ever do.
    seen = Counter(f.kind for f in faults_of(deal(seed, decks * len(deck), without, together)))
    assert set(seen) <= set(deck)
    assert all(abs(seen[kind] - decks * deck.count(kind)) <= 3 for kind in deck)


@given(SEEDS, st.integers(1, 5))
def test_no_two_faults_of_a_round_are_about_the_driver_or_the_store(
    seed: int, together: int
) -> None:
    for each in deal(seed, 60, together=together):
        assert len(each.faults) <= together
        names = [fault.kind.name for fault in each.faults]
        assert sum("DRIVER" in name or name == "TAKE_OVER" for name in names) <= 1
        assert sum(name.startswith("STORE_") for name in names) <= 1
        assert names.count("KILL_WORKER") <= 1


@given(SEEDS, st.integers(1, 50))
def test_a_fault_chooses_one_of_what_there_is(seed: int, there: int) -> None:
    for fault in faults_of(deal(seed, 20)):
        assert fault.choose(range(there)) in range(there)
