"""All scenarios and, for those that share a query, their parts."""

from __future__ import annotations

from support.processors import clocks, errors, evolution, groups, in_pandas, shape
from support.processors.scenario import Scenario, script_scenario
from support.processors.scripts import EXPIRING, IN_PANDAS, IN_ROWS

__all__ = ["CASES", "SCENARIOS"]

_STILL = clocks.STILL

SCENARIOS: tuple[Scenario, ...] = (
    *(script_scenario(f"{kind} state, in rows", s, in_pandas=False) for kind, s in IN_ROWS.items()),
    *(script_scenario(f"{kind}, in pandas", s, in_pandas=True) for kind, s in IN_PANDAS.items()),
    script_scenario("state that expires, in rows", EXPIRING, in_pandas=False, conf=_STILL),
    script_scenario("state that expires, in pandas", EXPIRING, in_pandas=True, conf=_STILL),
    *clocks.SCENARIOS,
    *shape.SCENARIOS,
    *in_pandas.SCENARIOS,
    *evolution.SCENARIOS,
    *groups.SCENARIOS,
    *errors.SCENARIOS,
)

CASES: tuple[tuple[Scenario, str | None], ...] = tuple(
    (scenario, part) for scenario in SCENARIOS for part in scenario.parts or (None,)
)
"""One test each."""
