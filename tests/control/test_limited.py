"""Why, and why not: every decision is judged or says why it can't be, every batch with a wish that
is not granted, or with input that waits, says what limits it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from braided.cli.decisions import told
from braided.control.events import (
    FACTORS,
    Decided,
    Event,
    Judged,
    Limited,
    Measured,
    Planned,
    encode,
    read,
)
from braided.control.policies.ds2 import Ds2, Off
from braided.control.policies.saso import Saso
from braided.control.policy import Limits, ScalePolicy
from braided.control.settings import Settings
from braided.sim.arrivals import Spike
from braided.sim.cluster import Cluster, SimFlow, SimOperator, simulate
from braided.sim.keys import Hotspot, Zipf

SURGE = Spike(2000, 9000, 20, 20)


def events_of(
    scale: ScalePolicy, most: int, keys: Zipf | Hotspot, sized: bool, settle: int = 0
) -> list[Event]:
    flow = SimFlow(
        Cluster(hosts=2, cores=8),
        (SimOperator("sum", keys, channels=3),),
        SURGE,
        duration_s=80,
        sized=sized,
    )
    limits = Limits(channels_max=most)
    settings = Settings(scale=scale, limits=limits, settle_batches=settle)
    return list(simulate(flow, settings).events)


@pytest.mark.parametrize(
    ("scale", "most", "keys", "sized", "settle"),
    [
        (Ds2(), 16, Zipf(keys=50, skew=1.3), True, 0),
        (Saso(), 8, Zipf(), False, 0),
        (Off(), 16, Zipf(), False, 0),
        (Ds2(), 16, Zipf(), False, 30),
    ],
    ids=["ds2", "saso", "off", "while it settles"],
)
def test_nothing_is_decided_or_left_undone_without_a_word(
    scale: ScalePolicy, most: int, keys: Zipf, sized: bool, settle: int
) -> None:
    events = events_of(scale, most, keys, sized, settle)
    assert events == list(read(encode(event) for event in events))
    _check_judged(events)
    limits = Counter((e.batch, e.operator) for e in events if isinstance(e, Limited))
    assert not limits or max(limits.values()) == 1
    factors = {e.factor for e in events if isinstance(e, Limited)}
    assert factors <= set(FACTORS) and ("start" in factors) == (settle > 0)
    numbers = [event.decision for event in events if isinstance(event, Decided)]
    assert numbers == list(range(1, len(numbers) + 1)), "no number is missing in the log"
    changed = {e.batch for e in events if isinstance(e, Planned) and not e.dropped}
    for event in events:
        if isinstance(event, Measured) and event.congestion > 0.2 and event.batch not in changed:
            assert (event.batch, event.operator) in limits, f"batch {event.batch} is silent"
    assert all(told(event) for event in events if not isinstance(event, Measured))


def _check_judged(events: Sequence[Event]) -> None:
    """All but the last of what was done has a verdict."""
    dropped = {n for e in events if isinstance(e, Planned) and e.dropped for n in e.decisions}
    done = [
        e.decision
        for e in events
        if isinstance(e, Decided) and not e.held and e.decision not in dropped
    ]
    judged = {e.decision: e for e in events if isinstance(e, Judged)}
    assert [number for number in done if number not in judged] in ([], done[-1:])
    assert all(e.why for e in judged.values() if e.verdict == "unjudged")


def test_what_limits_is_named() -> None:
    bounded = events_of(Ds2(), 4, Zipf(), sized=False)
    factors = {e.factor for e in bounded if isinstance(e, Limited)}
    assert {"bounds"} <= factors <= {"bounds", "calm", "cool-down", "cost", "cores"}
    off = events_of(Off(), 16, Zipf(), sized=False)
    assert {e.factor for e in off if isinstance(e, Limited)} <= {"policy", "overhead", "cost"}
    said = next(told(e) for e in bounded if isinstance(e, Limited) and e.factor == "bounds")
    assert "4 channels are all that may be" in said
