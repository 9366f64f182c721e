"""Scenarios of the simulator that several tests look at: each runs once in a process."""

from __future__ import annotations

from functools import cache

from braided.control.policy import ScalePolicy
from braided.sim.scenarios import Result, run_scenario

__all__ = ["result_of"]


@cache
def result_of(name: str, policy: ScalePolicy | None = None) -> Result:
    """What it comes to, under its own policy or another one."""
    return run_scenario(name, policy)
