"""Locality simulated: the shapes that the paper's figures have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from braided.sim.locality_figures import figures, panels, remote_shares, throughput
from braided.sim.plot import svg

pytestmark = [pytest.mark.together("figures"), pytest.mark.slow]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    found = figures(hosts=(1, 2, 6, 32), edge_hosts=(6,))
    assert "<svg" in svg("locality", panels(found))
    return found


def test_a_hash_leaves_one_row_in_n_on_its_host_and_the_table_many_times_as_many(
    found: dict[str, Any],
) -> None:
    for row in found["by_hosts"]:
        assert row["hash"] == pytest.approx(1 / row["hosts"], rel=0.3)
        if row["hosts"] >= 4:
            assert row["online"] > 2.3 * row["hash"]


def test_online_holds_while_offline_decays(found: dict[str, Any]) -> None:
    rows = found["figure_11"][1:]
    online = [row["online"] for row in rows]
    assert max(online) - min(online) < 0.06
    assert rows[-1]["offline"] < rows[0]["offline"] - 0.06
    assert rows[-1]["offline"] > 2 * rows[-1]["hash"]
    ours, paper = found["ours"], found["paper"]
    for name in ("hash_6", "online_6", "offline_6_at_last", "fitted_6"):
        assert ours[name] == pytest.approx(paper[name], abs=0.06), name
    assert ours["online_imbalance"] < 1.1
    assert ours["online_imbalance"] < ours["hash_imbalance"]


def test_what_is_promised_comes_true_and_what_was_fitted_does_not(found: dict[str, Any]) -> None:
    for row in found["figure_11"][1:]:
        assert row["promised"] == pytest.approx(row["online"], abs=0.05)
        assert row["fitted"] > row["online"] + 0.1


def test_a_thousandth_of_the_pairs_doubles_locality_on_six_hosts(found: dict[str, Any]) -> None:
    few = next(r for r in found["figure_12"] if r["hosts"] == 6 and r["share_of_edges"] == 0.001)
    more = next(r for r in found["figure_12"] if r["hosts"] == 6 and r["share_of_edges"] == 0.01)
    assert few["locality"] > 1.9 * few["hash"]
    assert more["locality"] > few["locality"]


def test_throughput_has_the_shapes_of_figures_7_and_8(found: dict[str, Any]) -> None:
    def at(padding: int, hosts: int) -> dict[str, float]:
        return next(r for r in found["figure_7"] if r["padding"] == padding and r["hosts"] == hosts)

    assert at(20_000, 2)["hash"] < at(20_000, 1)["hash"]  # a second host makes it slower
    for padding in (0, 4_000, 12_000, 20_000):
        steps = np.diff([at(padding, hosts)["aware"] for hosts in range(2, 7)])
        assert np.allclose(steps, steps[0])  # linear beyond two hosts
        assert at(padding, 6)["aware"] > at(padding, 6)["hash"] >= at(padding, 6)["worst"] * 0.95
    eight = {r["locality"]: r for r in found["figure_8"] if r["hosts"] == 6}
    assert len({r["hash"] for r in eight.values()}) == 1
    assert eight[0.6]["aware"] == pytest.approx(1.25 * eight[0.5]["aware"], rel=0.01)
    assert eight[1.0]["aware"] < 1.1 * eight[0.9]["aware"]  # the plateau
    assert throughput(6, 0, 1.0) == pytest.approx(0.78 * throughput(6, 0, 0.0))
    assert remote_shares(1, 0.6) == {"hash": 0.0, "aware": 0.0, "worst": 0.0}
