"""The benchmark of locality on a few rows: keys of two operators come together while it runs, by
what it counts itself and by a file, and every row is counted once.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from braided.bench.locality import LocalitySize, measure
from braided.sim.correlated import CorrelatedPairs

SIZE = LocalitySize(
    paddings_kb=(1,),
    modes=("hash", "online", "worst"),
    periods=2,
    batches=8,
    rows=800,
    pairs=CorrelatedPairs(locations=60, hashtags=300, hashtag_head=20.0, affinity=0.9, stable=0.9),
)


def test_keys_that_occur_together_come_together_and_no_row_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    result = measure(spark, tmp_path, SIZE, lambda _: None)
    assert result["identical"]
    hashed, online, worst = result["cases"]
    assert online["locality"] > 1.5 * hashed["locality"]
    assert online["remote_mb"] <= hashed["remote_mb"]
    if worst["channels_side_by_side"] == 1:  # or its hosts were not ready at the same time
        assert worst["locality"] < hashed["locality"]
        assert hashed["remote_mb"] <= worst["remote_mb"]
    assert any(promise["moved_keys"] > 0 for promise in online["promises"])
    judged = [promise for promise in online["promises"] if promise["came"] is not None]
    assert all(abs(promise["expected"] - promise["came"]) < 0.15 for promise in judged), online
    assert result["in_phase"]
    costs = [value for name, value in result.items() if name.startswith("hot_path_cost")]
    assert len(costs) == 4 and all(0 < cost < 1 for cost in costs)
    assert set(result["missed"]) <= set(result)
