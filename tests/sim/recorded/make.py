"""Makes `live.jsonl`, the event log of a query that ran. In tests/, with the packages on the path:

    nice -n 19 python -m sim.recorded.make sim/recorded/live.jsonl

A rate source gives a trickle until Spark is warm, then 400 rows/s, 800 for a while and 400 again,
in batches of ten seconds; each row waits for a millisecond and computes for a twentieth of it.
`ds2` may take 8 channels of `local[8]`. The log that is kept is of 2 cores that had nine times as
much other work, none of which was as nice: the first batches took 10 to 25 s beside their rows,
later ones a second, and waiting took longer than asked for. It takes a quarter of an hour.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import braided
from braided.bench.costly_rows import OUTPUT, CostlyRows
from braided.bench.session import arena

__all__ = ["make"]

_INTERVAL_S = 10
_WARM_S = 90
_SURGE_S = (260, 480)
_LENGTH_S = 680
"""Once it is warm."""


def make(target: Path) -> None:
    with arena("recording", cores=8) as place:
        rows = place.spark.readStream.format("rate").option("rowsPerSecond", 800).load()
        since_s = F.col("timestamp").cast("double") - (time.time() + _WARM_S)
        every = F.when(since_s < 0, 20).when(since_s.between(*_SURGE_S), 1).otherwise(2)
        keyed = rows.where(F.col("value") % every == 0).select(
            (F.hash("value") % 500).cast("long").alias("k"), F.lit(0.0).alias("v")
        )
        operator = CostlyRows.with_(row_s=0.001, computed=0.05)
        query = (
            braided.stream(keyed)
            .groupBy("k")
            .apply(operator, OUTPUT)
            .name("work")
            .writeStream.foreachBatch(_counted)
            .option("checkpointLocation", place.fresh("checkpoint"))
            .option("braided.slots", 64)
            .option("braided.channels", 1)
            .option("braided.scale", "ds2")
            .option("braided.channels.max", 8)
            .trigger(processingTime=f"{_INTERVAL_S} seconds")
            .start()
        )
        time.sleep(_WARM_S + _LENGTH_S)
        query.stop()
        shutil.copyfile(place.work / "checkpoint/braided/events.jsonl", target)


def _counted(df: DataFrame, batch: int) -> None:
    df.count()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
