"""Locality simulated, in small: what a seed and what drift do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from braided.sim.correlated import CorrelatedPairs
from braided.sim.locality import Trial, locality_by_hash, run_periods


@pytest.mark.parametrize("hosts", [6, 16, 64])
def test_a_hash_leaves_one_row_in_n_whatever_the_hosts_where_heavy_keys_even_out(
    hosts: int,
) -> None:
    # Of one seed, the few heaviest pairs decide with many hosts: they are on one host or not.
    found = [
        locality_by_hash(Trial(hosts, periods=4, rows=20_000, rows_of=CorrelatedPairs(seed=seed)))
        for seed in range(6)
    ]
    assert np.mean(found) == pytest.approx(1 / hosts, rel=0.15)
    assert all(each == pytest.approx(1 / hosts, rel=0.5) for each in found)


def test_the_same_seed_has_the_same_rows_and_tables() -> None:
    trial = Trial(hosts=3, periods=2, rows=5_000, rows_of=CorrelatedPairs(seed=7))
    assert run_periods(trial) == run_periods(trial)
    assert run_periods(trial) != run_periods(replace(trial, rows_of=CorrelatedPairs(seed=8)))


def test_without_drift_one_table_does_for_good() -> None:
    rows = CorrelatedPairs(locations=200, hashtags=2_000, moving=0.0, fresh=0.0)
    trial = Trial(hosts=4, periods=6, rows=30_000, rows_of=rows, only_what_pays=True)
    periods = run_periods(trial)
    assert periods[-1].offline.locality == pytest.approx(periods[-1].online.locality, abs=0.05)
    # A table that brings no more than chance does is not worth its moves.
    assert periods[1].moved_keys > 0
    assert not any(period.moved_keys for period in periods[3:])
