"""Rebalancing: as few slots as will do change channel until the imbalance is tolerable.

The imbalance δ is the highest load of a channel over the average one. Rounds of refinement go on
until δ ≤ θ (Elasticutor 3.1), or until none helps: a slot that is alone too much for its channel
can't be helped by moving slots.

Where channels are not equally fast, it is the time that counts: a channel's load over its speed,
against the time that all would take if it were the same for everybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from braided.control.routing.refine import RefiningMove, refine
from braided.control.routing.refine_by_speed import refine_by_speed
from braided.control.routing.table import Loads, RoutingTable, Slots

__all__ = [
    "THETA",
    "apply_moves",
    "balancing_moves",
    "channel_loads",
    "channel_times",
    "checked_load",
    "imbalance",
    "rebalance",
]

THETA = 1.2


def imbalance(table: RoutingTable, load: npt.ArrayLike, speeds: Loads | None = None) -> float:
    """δ: the highest load of a channel over the average; 1.0 when there is no load."""
    loads = channel_loads(table, checked_load(table, load))
    times = loads if speeds is None else loads / speeds
    mean = float(loads.mean() if speeds is None else loads.sum() / speeds.sum())
    return max(1.0, float(times.max()) / mean) if mean > 0 else 1.0


def rebalance(
    table: RoutingTable,
    load: npt.ArrayLike,
    theta: float = THETA,
    max_moves: int | None = None,
    speeds: Loads | None = None,
) -> RoutingTable:
    """The next table, with δ ≤ theta where single moves lead there; the same one if none helps.

    `speeds` are those of channels, where they differ.
    """
    if not theta >= 1:
        raise ValueError(f"theta is the imbalance to tolerate, at least 1, not {theta}")
    weights = checked_load(table, load)
    moves = balancing_moves(table.slots, weights, table.channels, theta, max_moves, speeds=speeds)
    return table.next(apply_moves(table.slots, moves)) if moves else table


def balancing_moves(
    slots: Slots,
    weights: Loads,
    channels: int,
    theta: float,
    max_moves: int | None = None,
    goal: float | None = None,
    speeds: Loads | None = None,
) -> Sequence[RefiningMove]:
    """The moves that `rebalance` makes, in order; with a goal, once δ > theta, on to δ ≤ goal.

    The loads are taken as they are: whoever calls this has checked them.
    """
    loads = np.bincount(slots, weights=weights, minlength=channels).astype(np.float64)
    mean = float(loads.mean() if speeds is None else loads.sum() / speeds.sum())
    times = loads if speeds is None else loads / speeds
    if times.max() <= theta * mean:
        return ()
    target = (theta if goal is None else goal) * mean
    # Without a limit, one that a run does not come near: nothing here goes on for ever.
    limit = 4 * weights.size if max_moves is None else max_moves
    everyone = range(channels)
    rounds = (
        refine(slots, weights, loads, everyone, everyone)
        if speeds is None
        else refine_by_speed(slots, weights, loads, speeds)
    )
    moves: list[RefiningMove] = []
    for move in rounds:
        # Below a channel that is stuck, evening out the others does not lower δ.
        if move.peak <= max(target, move.stuck):
            break
        if len(moves) == limit:
            return moves
        moves.append(move)
    return _worthwhile(slots, weights, loads, moves, speeds)


def channel_loads(table: RoutingTable, load: Loads) -> Loads:
    """The load of each channel."""
    return np.bincount(table.slots, weights=load, minlength=table.channels).astype(np.float64)


def channel_times(table: RoutingTable, load: Loads, speeds: Loads | None) -> Loads:
    """The time that each channel takes for its load."""
    loads = channel_loads(table, load)
    return loads if speeds is None else loads / speeds


def checked_load(table: RoutingTable, load: npt.ArrayLike) -> Loads:
    """One finite load of at least 0 per slot, or a ValueError."""
    weights = np.asarray(load, dtype=np.float64)
    if weights.shape != table.slots.shape:
        raise ValueError(f"{table.slots.size} slots have {weights.size} loads")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("a slot's load is a finite number of at least 0")
    return weights


def _worthwhile(
    slots: Slots, weights: Loads, loads: Loads, moves: Sequence[RefiningMove], speeds: Loads | None
) -> Sequence[RefiningMove]:
    """The moves without those at the end that did not lower the peak, because another channel that
    is as full was stuck.
    """
    if not moves:
        return moves
    after = loads.copy()
    at = {move.slot: int(slots[move.slot]) for move in moves}
    for move in moves:
        weight = weights[move.slot]
        after[at[move.slot]] -= weight
        after[move.channel] += weight
        at[move.slot] = move.channel
    peak = float(after.max() if speeds is None else (after / speeds).max())
    # Sums in another order round in another way: better by that only is not better.
    return [move for move in moves if move.peak > peak * (1 + 1e-9)]


def apply_moves(before: Slots, moves: Iterable[RefiningMove]) -> Slots:
    """The slots after the moves; those that are handed in stay as they are."""
    slots = before.copy()
    for move in moves:
        slots[move.slot] = move.channel
    return slots
