"""`saso-paper`: Algorithms 1-3 of Gedik et al. 2014 as printed, to set beside `saso`.

Only what does not run at all is repaired: there is no level below level 0, a throughput that was
not measured is compared as one, and Algorithm 3 ends by returning that nothing is known. What it
does wrong with remote congestion is described in `saso.py` and shown by the tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from braided.control.levels import level_of
from braided.control.measure.view import FlowView
from braided.control.policies.saso import CONGESTED, SENSITIVITY
from braided.control.policy import Limits, Memory, Wish

__all__ = ["PaperState", "SasoPaper", "paper_step"]

_NEVER = -1


@dataclass
class PaperState:
    """P, L and, per level, P_i, C_i, T_i⁻ and T_i⁺ (Algorithm 1)."""

    levels: int
    period: int = 1
    level: int = 0
    visited: list[int] = field(default_factory=list)
    congested: list[bool] = field(default_factory=list)
    last: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.visited:
            self.visited = [_NEVER] * self.levels
            self.congested = [True] * self.levels
            self.last = [math.inf] * self.levels
            self.first = [math.nan] * self.levels


def paper_step(
    state: PaperState,
    steps: Sequence[int],
    throughput: float,
    congested: bool,
    sensitivity: float = SENSITIVITY,
) -> int:
    """Algorithm 2: updates the state and returns the number of channels."""
    here, top = state.level, state.levels
    s = 0.1 + (1.0 - sensitivity) * 0.9
    changes = {
        _change_by_congestion(state, congested),
        _change_by_throughput(state, steps, throughput, s),
    }
    if "less" in changes:
        for i in range(here + 1):
            state.congested[i], state.last[i] = False, 0.0
    if "more" in changes:
        for i in range(here, top):
            state.congested[i], state.last[i] = True, math.inf
    state.visited[here] = state.period
    state.period += 1
    state.last[here], state.congested[here] = throughput, congested
    if math.isnan(state.first[here]):
        state.first[here] = throughput
    remote = (
        here > 0
        and state.visited[here - 1] == state.visited[here] - 1
        and state.congested[here - 1]
        and state.congested[here]
        and state.last[here] <= state.last[here - 1]
    )
    if remote:
        _go(state, here - 1)
    elif congested:
        if here < top - 1 and state.last[here + 1] >= throughput:
            _go(state, here + 1)
    elif here > 0 and not state.congested[here - 1]:
        _go(state, here - 1)
    return steps[state.level]


def _go(state: PaperState, level: int) -> None:
    state.first[level] = math.nan
    state.level = level


def _change_by_congestion(state: PaperState, congested: bool) -> str:
    here, before = state.level, state.period - 1
    if state.visited[here] == before and state.congested[here] != congested:
        return "more" if congested else "less"
    if (
        here + 1 < state.levels
        and state.visited[here + 1] == before
        and state.congested[here + 1]
        and not congested
    ):
        return "less"
    if here > 0 and state.visited[here - 1] == before:
        return "more" if congested and not state.congested[here - 1] else "unknown"
    return "unknown"


def _change_by_throughput(
    state: PaperState, steps: Sequence[int], throughput: float, s: float
) -> str:
    here, before = state.level, state.period - 1
    if state.visited[here] == before:
        first, channels = state.first[here], steps[here]
        below = steps[here - 1] if here > 0 else 0
        above = steps[here + 1] if here + 1 < state.levels else math.inf
        if throughput < first:
            if first - throughput > s * (channels - below) * first / channels:
                return "less"
        elif throughput - first > s * (above - channels) * first / channels:
            return "more"
    if (
        here + 1 < state.levels
        and state.visited[here + 1] == before
        and throughput > state.last[here + 1]
    ):
        return "more"
    if here > 0 and state.visited[here - 1] == before and throughput < state.last[here - 1]:
        return "less"
    return "unknown"


@dataclass(frozen=True)
class SasoPaper:
    """The policy `saso-paper`."""

    threshold: float = CONGESTED
    sensitivity: float = SENSITIVITY

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        wishes, after = {}, dict(memory)
        for name, operator in flow.operators.items():
            steps = limits.of(name, operator.channels).levels(operator.table.slots.size)
            state = _restored(memory.get(name), len(steps))
            state.level = level_of(operator.channels, steps)
            congested = bool(operator.congestion > self.threshold)
            channels = paper_step(state, steps, operator.throughput, congested, self.sensitivity)
            wishes[name] = Wish(channels, "as printed")
            after[name] = _stored(state)
        return wishes, after


def _stored(state: PaperState) -> dict[str, Any]:
    """In JSON, which has no infinity and no nan."""
    return {
        "period": state.period,
        "visited": list(state.visited),
        "congested": list(state.congested),
        "last": [None if math.isinf(t) else t for t in state.last],
        "first": [None if math.isnan(t) else t for t in state.first],
    }


def _restored(stored: Mapping[str, Any] | None, levels: int) -> PaperState:
    if stored is None or len(stored["visited"]) != levels:
        return PaperState(levels)
    return PaperState(
        levels,
        period=stored["period"],
        visited=list(stored["visited"]),
        congested=list(stored["congested"]),
        last=[math.inf if t is None else t for t in stored["last"]],
        first=[math.nan if t is None else t for t in stored["first"]],
    )
