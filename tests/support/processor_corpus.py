"""All scenarios and, for those that share a query, their parts."""

from __future__ import annotations

from support import (
    processor_scenarios_errors,
    processor_scenarios_evolution,
    processor_scenarios_groups,
    processor_scenarios_pandas,
    processor_scenarios_shape,
    processor_scenarios_time,
)
from support.processor_scenarios import Scenario, script_scenario
from support.processor_scripts import EXPIRING, IN_PANDAS, IN_ROWS

__all__ = ["CASES", "SCENARIOS"]

_STILL = processor_scenarios_time.STILL

SCENARIOS: tuple[Scenario, ...] = (
    *(script_scenario(f"{kind} state, in rows", s, in_pandas=False) for kind, s in IN_ROWS.items()),
    *(script_scenario(f"{kind}, in pandas", s, in_pandas=True) for kind, s in IN_PANDAS.items()),
    script_scenario("state that expires, in rows", EXPIRING, in_pandas=False, conf=_STILL),
    script_scenario("state that expires, in pandas", EXPIRING, in_pandas=True, conf=_STILL),
    *processor_scenarios_time.SCENARIOS,
    *processor_scenarios_shape.SCENARIOS,
    *processor_scenarios_pandas.SCENARIOS,
    *processor_scenarios_evolution.SCENARIOS,
    *processor_scenarios_groups.SCENARIOS,
    *processor_scenarios_errors.SCENARIOS,
)

CASES: tuple[tuple[Scenario, str | None], ...] = tuple(
    (scenario, part) for scenario in SCENARIOS for part in scenario.parts or (None,)
)
"""One test each."""
