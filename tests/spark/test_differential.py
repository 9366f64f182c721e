"""Random flows on random input, at 1, 2, 5 and 16 channels, against a plain Python oracle.

Braided runs the flow in Spark with rescales, rebalances and restarts wherever Hypothesis puts them.
The oracle runs the same logic in one loop over the rows that Spark's own log gives to each batch.
State and output must be the same, batch by batch; in order-preserving mode in the same order.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

import braided
from braided.control import operator_loop
from braided.control.policy import Limits
from braided.flow.graph import flow_of
from braided.steering import policy_settings as policies
from support.reassigning import Reassigner
from support.restless import (
    RESTLESS_KEYS,
    WITHOUT_CORES,
    RestlessBalance,
    RestlessScale,
    as_many_as_wished,
    never_in_vain,
)
from support.stream_harness import Feed, Lab, manifests_of, rows_by_batch, timers_of
from support.stream_operators import FAMILY, SCHEMA, Oracle, Row, Tagged

CHANNELS = (1, 2, 5, 16)
BONUS = {0: 10, 1: 20}

random_flows = settings(
    max_examples=28,
    deadline=None,
    derandomize=True,
    database=None,
    # Shrinking would run hundreds of queries; an example is small enough to read.
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Step:
    """A stateless step: on a stream, and on one row (None drops it)."""

    on_stream: Callable[[braided.Stream], braided.Stream]
    on_row: Callable[[Row], Row | None]


def _lookup(stream: braided.Stream) -> braided.Stream:
    session = stream._shape.sparkSession
    bonus = session.createDataFrame(list(BONUS.items()), "c int, bonus bigint")
    joined = stream.join(F.broadcast(bonus), "c", "left")
    return joined.select("k", "c", (F.col("v") + F.coalesce("bonus", F.lit(0))).alias("v"), "seq")


STEPS = {
    "select *": Step(lambda s: s.select("*"), lambda r: r),
    "filter": Step(lambda s: s.filter("v % 3 != 1"), lambda r: r if r[2] % 3 != 1 else None),
    "withColumn": Step(
        lambda s: s.withColumn("v", F.col("v") * 2), lambda r: (r[0], r[1], r[2] * 2, r[3])
    ),
    "fillna": Step(
        lambda s: s.fillna({"k": "nobody"}), lambda r: ("nobody" if r[0] is None else r[0], *r[1:])
    ),
    "selectExpr": Step(
        lambda s: s.selectExpr("k", "c", "v + 1 AS v", "seq"),
        lambda r: (r[0], r[1], r[2] + 1, r[3]),
    ),
    "join": Step(_lookup, lambda r: (r[0], r[1], r[2] + BONUS.get(r[1], 0), r[3])),
}

KEYS: dict[str, Callable[[Row], tuple[Any, ...]]] = {
    "k": lambda r: (r[0],),
    "k, c": lambda r: (r[0], r[1]),
    "c % 3": lambda r: (None if r[1] is None else r[1] % 3,),
}


@dataclass(frozen=True)
class Action:
    rows: tuple[Row, ...]
    files: int
    before: str
    """What happens before the rows arrive."""
    channels: int


@dataclass(frozen=True)
class Plan:
    members: tuple[str, ...]
    keys: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]
    ordered: bool
    by_column: bool
    slots: int
    actions: tuple[Action, ...]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    length = draw(st.integers(1, 2))
    by_column = draw(st.booleans())
    shuffle = random.Random(draw(st.integers(0, 1_000)))
    actions = []
    seq = 0
    for _ in range(draw(st.integers(2, 4))):
        values = draw(
            st.lists(
                st.tuples(
                    st.sampled_from([None, "a", "b", "c", "d", "e"]),
                    st.sampled_from([None, 0, 1, 2]),
                    st.integers(0, 15),
                ),
                max_size=25,
            )
        )
        rows = [(*value, seq + i) for i, value in enumerate(values)]
        seq += len(rows)
        if by_column:
            shuffle.shuffle(rows)
        actions.append(
            Action(
                rows=tuple(rows),
                files=draw(st.integers(1, 3)) if by_column else 1,
                before=draw(st.sampled_from(["nothing", "rescale", "rebalance", "restart"])),
                channels=draw(st.sampled_from(CHANNELS)),
            )
        )
    names = st.sampled_from(sorted(FAMILY))
    return Plan(
        members=tuple(draw(names) for _ in range(length)),
        keys=tuple(draw(st.sampled_from(sorted(KEYS))) for _ in range(length)),
        steps=tuple(
            tuple(draw(st.lists(st.sampled_from(sorted(STEPS)), max_size=2))) for _ in range(length)
        ),
        ordered=draw(st.booleans()),
        by_column=by_column,
        slots=draw(st.sampled_from([16, 64])),
        actions=tuple(actions),
    )


@random_flows
@given(channels=st.sampled_from(CHANNELS), plan=plans())
def test_state_and_output_equal_a_plain_python_oracle(
    new_lab: Callable[[Path], Lab], channels: int, plan: Plan
) -> None:
    event(" -> ".join(plan.members))
    with tempfile.TemporaryDirectory() as home, new_lab(Path(home)) as lab:
        feed = lab.feed(SCHEMA)
        flow = _flow(plan, feed.frame())
        options: dict[str, Any] = {"slots": plan.slots, "orderPreserving": plan.ordered}
        if plan.by_column:
            options["orderBy"] = "seq"
        query = lab.start(flow, channels=channels, **options)
        for action in plan.actions:
            match action.before:
                case "rescale":
                    query.rescale(action.channels)
                case "rebalance":
                    query.rebalance()
                case "restart":
                    query.stop()
                    query = lab.start(flow, **options)
            feed.add(action.rows, action.files)
            query.processAllAvailable()
        query.stop()
        _is_exact(lab, plan, feed, flow, sum(len(a.rows) for a in plan.actions))


@settings(random_flows, max_examples=3)
@given(plan=plans(), seed=st.integers(0, 1_000))
def test_state_and_output_are_exact_with_policies_that_know_no_rest(
    new_lab: Callable[[Path], Lab], plan: Plan, seed: int
) -> None:
    """Other channels, slots dealt out anew and keys pinned and let go, after every batch but the
    first of a process, and keys in other slots after every batch.
    """
    chance = random.Random(seed)
    rows = [
        (chance.choice([None, *"abcde"]), chance.choice([None, 0, 1, 2]), chance.randrange(16), seq)
        for seq in range(320)
    ]
    batches = [tuple(rows[begin : begin + 20]) for begin in range(0, len(rows), 20)]
    with (
        tempfile.TemporaryDirectory() as home,
        new_lab(Path(home)) as lab,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(policies, "HOT_KEYS", RESTLESS_KEYS)
        patch.setattr(Limits, "most", WITHOUT_CORES)
        patch.setattr(operator_loop, "judge", never_in_vain)
        patch.setattr(operator_loop.OperatorLoop, "useful", as_many_as_wished)
        feed = lab.feed(SCHEMA)
        flow = _flow(plan, feed.frame())
        options: dict[str, Any] = {
            "slots": plan.slots,
            "orderPreserving": plan.ordered,
            "scale": RestlessScale(seed),
            "balance": RestlessBalance(seed),
            "channels.max": 6,
        }
        if plan.by_column:
            options["orderBy"] = "seq"
        reassigner, assigned = Reassigner(seed), 0
        for run in (batches[:8], batches[8:]):
            with lab.running(flow, **options) as query:
                for batch in run:
                    feed.add(batch)
                    query.processAllAvailable()
                    assert query._opened.control.settled(180)
                    assigned += reassigner.propose(query)
        parts = [
            part for m in manifests_of(lab.checkpoint).values() for part in m.operators.values()
        ]
        # In each run the first batch is not looked at, two more are waited for, and the last
        # decision finds no batch.
        assert max(part.epoch for part in parts) >= 8
        assert len({part.channels for part in parts}) > 2
        assert len({pin.key for part in parts for pin in part.pins or ()}) > 1
        assert assigned > 0 and any(part.assigned for part in parts)
        _is_exact(lab, plan, feed, flow, len(rows))


def _is_exact(lab: Lab, plan: Plan, feed: Feed, flow: braided.Stream, count: int) -> None:
    """Output batch by batch, state and timers are the oracle's."""
    manifests = manifests_of(lab.checkpoint)
    input_rows = rows_by_batch(feed, lab.checkpoint, list(manifests))
    assert sum(map(len, input_rows.values())) == count
    oracles, expected = _expected(
        plan, input_rows, {batch: m.batch_time_ms for batch, m in manifests.items()}
    )
    found = lab.output()
    for batch, rows in expected.items():
        if plan.ordered:
            assert found[batch] == rows, f"batch {batch}"
        else:
            assert Counter(found[batch]) == Counter(rows), f"batch {batch}"
    for step, oracle in zip(flow_of([flow._node]).steps, oracles, strict=True):
        timers = {key: tuple(sorted(ms)) for key, ms in oracle.timers.items() if ms}
        assert timers_of(lab.checkpoint, flow, step.name) == timers
        fresh = {f.name: f.default for f in step.operator._fields if f.name != "due"}
        stored = lab.state(flow, step.name)
        assert {k: s for k, s in stored.items() if s != fresh} == {
            k: s for k, s in oracle.state().items() if s != fresh
        }
        assert timers.keys() <= stored.keys()


def _flow(plan: Plan, frame: Any) -> braided.Stream:
    flow = braided.stream(frame)
    for number, (member, key, steps) in enumerate(
        zip(plan.members, plan.keys, plan.steps, strict=True)
    ):
        grouped = flow.groupBy(*[F.expr(part) for part in key.split(", ")])
        flow = grouped.apply(FAMILY[member].operator, SCHEMA).name(f"{number}-{member}")
        for step in steps:
            flow = STEPS[step].on_stream(flow)
    return flow


def _expected(
    plan: Plan, input_rows: dict[int, list[Row]], times_ms: dict[int, int]
) -> tuple[list[Oracle], dict[int, list[Row]]]:
    width = 3 if plan.by_column else 2
    oracles = [
        Oracle(FAMILY[member], KEYS[key], width + number)
        for number, (member, key) in enumerate(zip(plan.members, plan.keys, strict=True))
    ]
    expected = {}
    for batch, rows in input_rows.items():
        tagged = [
            Tagged((batch, row[3], n) if plan.by_column else (batch, n), row)
            for n, row in enumerate(rows)
        ]
        for oracle, steps in zip(oracles, plan.steps, strict=True):
            tagged = oracle.batch(batch, times_ms[batch], tagged)
            for step in steps:
                changed = [(t.tag, STEPS[step].on_row(t.row)) for t in tagged]
                tagged = [Tagged(tag, row) for tag, row in changed if row is not None]
        expected[batch] = [t.row for t in tagged]
    return oracles, expected
