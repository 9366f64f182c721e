"""Views of operators as tests need them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from braided.control.measure.view import FlowView, OperatorView
from braided.control.routing.table import Loads, RoutingTable

__all__ = ["flow", "view"]


def view(table: RoutingTable, load: Loads, **others: Any) -> OperatorView:
    """An operator with that load; everything else is nothing unless it is given."""
    nothing = np.zeros(table.slots.size)
    fields: dict[str, Any] = {
        "name": "o",
        "keys": nothing,
        "state_bytes": nothing,
        "arrival_rate": 0.0,
        "throughput": 0.0,
        "true_rate": 0.0,
        "selectivity": 1.0,
        "backlog_rows": 0.0,
        "congestion": 0.0,
        "channel_load": np.zeros(table.channels),
    }
    return OperatorView(table=table, load=load, **{**fields, **others})


def flow(*operators: OperatorView, interval_s: float = 0.0, **others: Any) -> FlowView:
    """A flow of those operators, in a row unless `upstream` is given."""
    names = [operator.name for operator in operators]
    upstream = {after: (before,) for before, after in pairwise(names)}
    fields: dict[str, Any] = {"overhead_s": 0.0, "latency_s": None, "upstream": upstream}
    return FlowView(
        batch=0,
        interval_s=interval_s,
        operators={operator.name: operator for operator in operators},
        **{**fields, **others},
    )
