"""Tables and loads as Hypothesis makes them up."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from braided.control.routing.table import Loads, RoutingTable

__all__ = ["loads", "tables", "tables_with_load"]


@st.composite
def tables(draw: st.DrawFn, max_slots: int = 40, max_channels: int = 12) -> RoutingTable:
    """Any table: lopsided ones, empty channels and more channels than slots among them."""
    channels = draw(st.integers(1, max_channels))
    slots = draw(st.lists(st.integers(0, channels - 1), min_size=1, max_size=max_slots))
    return RoutingTable(draw(st.integers(0, 9)), channels, np.array(slots))


@st.composite
def loads(draw: st.DrawFn, slots: int) -> Loads:
    """Whole numbers, so that sums are exact; ties and zeros are common, a giant now and then."""
    some = st.one_of(st.integers(0, 3), st.integers(0, 100), st.sampled_from([0, 1_000]))
    return np.array(draw(st.lists(some, min_size=slots, max_size=slots)), dtype=np.float64)


@st.composite
def tables_with_load(draw: st.DrawFn) -> tuple[RoutingTable, Loads]:
    table = draw(tables())
    return table, draw(loads(table.slots.size))
