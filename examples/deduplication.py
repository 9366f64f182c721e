"""Every message once: a message that was seen within the hour is dropped, then forgotten.

Spark's own StatefulProcessor with values that expire. The state of a message goes away an hour
after it was last written, without a timer and without anybody asking.
"""

import json
import os
import tempfile
from pathlib import Path

import braided
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

HOUR_MS = 60 * 60 * 1000


class FirstOnly(StatefulProcessor):
    def init(self, handle):
        self.seen = handle.getValueState("seen", "times int", ttlDurationMs=HOUR_MS)

    def handleInputRows(self, key, rows, timerValues):
        times = (self.seen.get() or (0,))[0]
        for row in rows:
            if times == 0:
                yield Row(sender=key[0], id=key[1], text=row.text)
            times += 1
        self.seen.update((times,))

    def close(self):
        pass


MESSAGES = [  # (sender, id, text); networks repeat themselves
    [("pump", 1, "on"), ("pump", 1, "on"), ("valve", 1, "shut")],
    [("pump", 2, "off"), ("valve", 1, "shut"), ("pump", 1, "on")],
    [("valve", 2, "open"), ("valve", 2, "open"), ("valve", 2, "open"), ("pump", 2, "off")],
]

if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        for number, batch in enumerate(MESSAGES):
            rows = [{"sender": s, "id": i, "text": t} for s, i, t in batch]
            path = Path(directory, f"{number}.json")
            path.write_text("\n".join(map(json.dumps, rows)))
            os.utime(path, (number, number))  # files are taken by their age, one a batch
        messages = (
            spark.readStream.schema("sender string, id long, text string")
            .option("maxFilesPerTrigger", 1)
            .json(directory)
        )
        once = (
            braided.stream(messages)
            .groupBy("sender", "id")
            .transformWithState(
                statefulProcessor=FirstOnly(),
                outputStructType="sender string, id long, text string",
                outputMode="Append",
                timeMode="ProcessingTime",
            )
        )
        kept = []
        query = (
            once.writeStream.foreachBatch(lambda frame, batch: kept.extend(frame.collect()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print(f"{sum(map(len, MESSAGES))} messages came, {len(kept)} were new:")
        for row in sorted(kept):
            print(f"  {row.sender:<6} {row.id}  {row.text}")
