"""SASO: up while congested, down while not, and never twice into the same mistake.

Gedik et al. 2014, section 4. Per operator the controller knows, of each level of channels (P6,
`levels`), when it was there last, whether it was congested and what the throughput was:

P1 expand      congested: one level up, unless it is known to be no better there
P2 contract    not congested: one level down, unless it is known to be congested there
P3, P4 adapt   congestion or throughput changed as it only does when the load did: forget what is
               known of the levels above (more load) or below (less)
P5 remote      up did not help, congestion stays: it is not ours, go back down

`saso-paper` is Algorithms 1-3 as printed, kept to show the difference. `saso` corrects them:

- P4 as printed takes any difference of throughput between levels for a change of load. Noise of
  one per cent then wipes, every other period, just what P5 and P1 would have looked at, and under
  remote congestion the operator climbs to the top. Without noise it hops between two levels for
  ever, because P1 climbs again where throughput was equal. Here P5 is asked first, on the old
  memory, and P1, P4 across levels and P5 ask for a *significant* gain: s·ΔN·T/N, the share s of
  what the step would bring if everything scaled.
- A level above that was seen without congestion is better, whatever its throughput: it took the
  whole load. Without this, a significant gain being asked for, a look down would not find back.
- Congestion that was remote can end without a sign here: an operator at its capacity, beside a
  bottleneck that has gone, looks as it did. So after some time it looks above once more.
- After a change of load the throughput to compare with is today's, not that of the first period
  of the stay: else a load that rose and fell again would not be seen to fall.
- In micro-batches a look down is a batch that is late, and what it leaves undone makes the next
  ones late. Busy time is measured here, so a level below that can't do the work is not looked at,
  and on the way up levels are skipped that can't: each would be a batch longer than the one before.
- Where this level can do the work by its busy time, congestion is remote, or noise. So it is
  followed when it has lasted for some periods.
- A step that P5 takes back is one that was tried, and it is taken back at once: who waits for calm,
  as before other steps down, forgets meanwhile where it came from, and climbs. So a level knows
  from where it was reached.
- An operator may have a number that is no level, because somebody asked for it or no more channels
  help. Who is to stay stays there: to go to the nearest level would be a step that nothing speaks
  for, and one that is taken back.
- What was forgotten is `None`, not a 0 or ∞ that compares.

Significance: s = 0.1 + 0.9(1 - α), and α = 1 is the most sensitive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from braided.control.levels import level_of, levels
from braided.control.measure.view import FlowView, OperatorView
from braided.control.policy import Limits, Memory, Wish

__all__ = ["CONGESTED", "SENSITIVITY", "Level", "Saso", "SasoState", "saso_step"]

CONGESTED = 0.2
"""The congestion index above which an operator is congested; 0.01 to 0.3 does well (B.3)."""
SENSITIVITY = 0.5
_FORGET_S = 120.0
_FORGET_PERIODS = 20
"""How long it counts that the level above was no better: for that time, and so many periods."""
_LASTING_PERIODS = 4
"""How long congestion lasts that busy time does not explain, before it is followed."""
_FULL = 0.8
_NEAR = 1.1
"""Levels that make a late batch no shorter than this are not worth climbing to."""
_UNEVEN = 1.1
"""What the busiest channel has over the average, at best, by chance alone."""


class Level(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one level; a throughput that nobody knows is `None`.

    A level nobody has been to counts as congested, so that an operator does not step down into
    the unknown, and as better than the one below it, so that it does step up. Of a level below
    that was forgotten because the load fell, it counts that it is not congested.
    """

    period: int = -1
    congested: bool = True
    last: float | None = None  # throughput when last there
    first: float | None = None  # throughput of the first period of the last stay


class SasoState(msgspec.Struct, frozen=True):
    """One operator's memory. A restart needs it: levels below that nobody knows are congested."""

    period: int = 1
    level: int = 0
    levels: tuple[Level, ...] = msgspec.field(default=(), name="known")


def saso_step(
    state: SasoState,
    steps: Sequence[int],
    throughput: float,
    congested: bool,
    sensitivity: float = SENSITIVITY,
    fits_below: bool = True,
    fits_at: int = 0,
    may_climb: bool = True,
    enough: int = 0,
    forget_periods: int = int(_FORGET_S),
) -> tuple[SasoState, str]:
    """One adaptation period: the state with the level to go to, and which principle spoke.

    `fits_below` is False where it is known without going there that the level below is too small,
    and `fits_at` is the lowest level of which that is not known. Without `may_climb`, congestion
    has not lasted long enough to be followed. `enough` is the level that the throughput of now
    needs. What was seen above is forgotten after `forget_periods`.
    """
    seen = _Period(state, steps, throughput, congested, 0.1 + 0.9 * (1.0 - sensitivity))
    if seen.is_remote():
        seen.note(first=None)
        return seen.go(min(0, max(seen.came_from, enough) - seen.here)), _REMOTE
    more, less = seen.more_load(), seen.less_load()
    changed = " after more load" if more else " after less load" if less else ""
    if less:
        seen.forget_below()
    if more:
        seen.forget_above()
    seen.note(first=None if more or less else seen.current.first)
    if congested:
        if seen.above is None:
            return seen.go(0), "congested, and there is no level above"
        if not may_climb:
            return seen.go(0), "congested, though its channels have time: not for long yet"
        if fits_at > seen.here + 1:
            # What is in between is not looked at, and so is not known to be better or worse.
            return seen.go(fits_at - seen.here), f"congested{changed}, and busy time asks for it"
        if seen.is_better_above(forget_periods):
            return seen.go(+1), f"congested{changed} (P1)"
        return seen.go(0), "congested, and the level above is known to be no better (P1)"
    if seen.here > 0 and not seen.below.congested and fits_below:
        return seen.go(-1), f"not congested{changed}, nor known to be below (P2)"
    return seen.go(0), "settled"


_REMOTE = "congested, and the step up did not help: remote (P5)"


class _Period:
    """One operator in one period: where it is, what it knows, and what it sees."""

    def __init__(
        self, state: SasoState, steps: Sequence[int], throughput: float, congested: bool, s: float
    ) -> None:
        self.here, self.now, self.steps, self.s = state.level, state.period, steps, s
        self.throughput, self.congested = throughput, congested
        self.levels = [*state.levels, *[Level()] * (len(steps) - len(state.levels))]
        # Nothing is below level 0, and the step up from the top is as good as any.
        lower = steps[self.here - 1] if self.here > 0 else 0
        higher = steps[self.here + 1] if self.here + 1 < len(steps) else 2 * steps[self.here]
        self.lower, self.channels, self.higher = lower, steps[self.here], higher

    @property
    def current(self) -> Level:
        return self.levels[self.here]

    @property
    def below(self) -> Level:
        return self.levels[self.here - 1] if self.here > 0 else Level()

    @property
    def above(self) -> Level | None:
        return self.levels[self.here + 1] if self.here + 1 < len(self.levels) else None

    def was_at(self, level: Level | None) -> bool:
        return level is not None and level.period == self.now - 1

    def is_gain(self, before: float, after: float, fewer: int, more: int) -> bool:
        """Whether throughput rose by s of what more channels instead of fewer should bring."""
        base = max(fewer, 1)
        return after - before > self.s * (more - fewer) * before / base

    @property
    def came_from(self) -> int:
        """The level of the period before, if it is below."""
        return next((n for n in range(self.here) if self.was_at(self.levels[n])), self.here)

    def is_remote(self) -> bool:
        """Whether the step up that led here brought nothing."""
        before = self.levels[self.came_from]
        return (
            self.came_from < self.here
            and before.congested
            and self.congested
            and before.last is not None
            and not self.is_gain(
                before.last, self.throughput, self.steps[self.came_from], self.channels
            )
        )

    def more_load(self) -> bool:
        here, below, above = self.current, self.below, self.above
        if self.was_at(here):
            rose = here.first is not None and self.is_gain(
                here.first, self.throughput, self.channels, self.higher
            )
            return rose or (self.congested and not here.congested)
        if above is not None and self.was_at(above) and above.last is not None:
            return self.is_gain(above.last, self.throughput, self.channels, self.higher)
        return self.was_at(below) and self.congested and not below.congested

    def less_load(self) -> bool:
        here, below, above = self.current, self.below, self.above
        if self.was_at(here):
            first = here.first
            fell = first is not None and (
                first - self.throughput
                > self.s * (self.channels - self.lower) * first / self.channels
            )
            return fell or (here.congested and not self.congested)
        if above is not None and self.was_at(above):
            return above.congested and not self.congested
        if self.was_at(below) and below.last is not None:
            return self.is_gain(self.throughput, below.last, self.lower, self.channels)
        return False

    def is_better_above(self, forget_periods: int) -> bool:
        """Whether nobody knows, or it took the whole load there, or much more than here."""
        above = self.above
        assert above is not None
        if above.last is None or not above.congested or above.period < self.now - forget_periods:
            return True
        return self.is_gain(self.throughput, above.last, self.channels, self.higher)

    def forget_below(self) -> None:
        for level in range(self.here):
            self.levels[level] = Level(self.levels[level].period, congested=False)

    def forget_above(self) -> None:
        for level in range(self.here + 1, len(self.levels)):
            self.levels[level] = Level(self.levels[level].period)

    def note(self, first: float | None) -> None:
        stayed = self.was_at(self.current) and first is not None
        self.levels[self.here] = Level(
            self.now, self.congested, self.throughput, first if stayed else self.throughput
        )

    def go(self, step: int) -> SasoState:
        return SasoState(self.now + 1, self.here + step, tuple(self.levels))


@dataclass(frozen=True)
class Saso:
    """The policy `saso`: every operator on its own, by its congestion and throughput."""

    threshold: float = CONGESTED
    sensitivity: float = SENSITIVITY

    def scale(
        self, flow: FlowView, limits: Limits, memory: Memory
    ) -> tuple[Mapping[str, Wish], Memory]:
        wishes, after = {}, dict(memory)
        for name, operator in flow.operators.items():
            if operator.pauses:
                continue  # a period without anything new
            steps = limits.of(name, operator.channels).levels(operator.table.slots.size)
            state = _where(memory.get(name), operator.channels, steps)
            congested = bool(operator.congestion > self.threshold)
            # By the least and by the most that the rate may be, as far as it is known.
            error = operator.rate_error
            fits_at = _fits_at(flow, operator, steps, 1.0)
            fits_surely_at = _fits_at(flow, operator, steps, 1 + 2 * error)
            too_few = _fits_at(flow, operator, steps, 1 - error) > state.level
            # What is late for other reasons is followed when it lasts, counted on each level anew.
            congested = congested or (too_few and flow.is_late)
            lasted = _lasted(memory.get(name), operator.channels)
            lasted = lasted + (not flow.drains) if congested else 0
            may_climb = operator.total_load <= 0 or too_few or lasted >= _LASTING_PERIODS
            enough = 0
            if operator.true_rate > 0:
                needed = math.ceil(operator.throughput / operator.true_rate / _FULL)
                enough = next((n for n, count in enumerate(steps) if count >= needed), 0)
            here = state.level
            state, why = saso_step(
                state,
                steps,
                operator.throughput,
                congested,
                self.sensitivity,
                fits_surely_at < state.level,
                fits_at,
                may_climb,
                enough,
                max(_FORGET_PERIODS, math.ceil(_FORGET_S / flow.interval_s))
                if flow.interval_s > 0
                else int(_FORGET_S),
            )
            wishes[name] = Wish(
                operator.channels if state.level == here else steps[state.level],
                f"{why}: congestion {operator.congestion:.2f}, {operator.throughput:,.0f} rows/s "
                f"on {operator.channels} channels",
                at_once=why == _REMOTE,
            )
            after[name] = {**msgspec.to_builtins(state), "most": steps[-1]}
            after[name]["lasted"] = [operator.channels, lasted]
        return wishes, after


def _lasted(remembered: object, channels: int) -> int:
    """For how many periods it has been congested on so many channels."""
    if not isinstance(remembered, dict):
        return 0
    on, periods = remembered.get("lasted", (0, 0))
    return int(periods) if on == channels else 0


def _fits_at(flow: FlowView, operator: OperatorView, steps: Sequence[int], factor: float) -> int:
    """The lowest level that does the work, if it is so many times what it seems; the highest if
    none does. Where that is because of what a batch takes beside its work, it is the lowest that
    comes near the shortest batch there is.
    """
    took_s = [_batch_s(flow, operator, count, factor) for count in steps]
    may_take_s = flow.interval_s
    if flow.overhead_fills_interval:
        may_take_s = _NEAR * min(took_s)
    fitting = (n for n, each_s in enumerate(took_s) if each_s <= may_take_s)
    return next(fitting, len(steps) - 1)


def _batch_s(flow: FlowView, operator: OperatorView, channels: int, factor: float = 1.0) -> float:
    """What the work that comes in an interval would take on so many channels."""
    load = factor * operator.total_load
    busiest = max(_UNEVEN * load / channels, factor * float(operator.load.max()))
    others = sum(
        float(other.channel_load.max())
        for name, other in flow.operators.items()
        if name != operator.name
    )
    return flow.overhead_s + (busiest + others) * flow.interval_s


def _where(remembered: object, channels: int, steps: tuple[int, ...]) -> SasoState:
    """The memory, brought to where the operator really is: a wish may not have been granted. Where
    there may be more channels than before, or fewer, levels that are other numbers now are unknown.
    """
    state = SasoState() if remembered is None else msgspec.convert(remembered, SasoState)
    most = remembered.get("most", steps[-1]) if isinstance(remembered, dict) else steps[-1]
    before = steps if most == steps[-1] else levels(steps[0], max(steps[0], most))
    same = sum(old == new for old, new in zip(before, steps, strict=False))
    return SasoState(state.period, level_of(channels, steps), state.levels[:same])
