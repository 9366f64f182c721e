"""Sessions out of clicks: a visit is over when its user was away for thirty minutes.

Spark's own StatefulProcessor, in event time: every click moves the user's timer, and when the
watermark has passed it the visit is reported. Only `braided.stream` makes it run on Braided.
"""

import json
import os
import tempfile
from datetime import datetime
from pathlib import Path

import braided
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

GAP_MS = 30 * 60 * 1000


class Visits(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.visit = handle.getValueState("visit", "start_ms long, last_ms long")
        self.pages = handle.getMapState("pages", "page string", "clicks int")

    def handleInputRows(self, key, rows, timerValues):
        for row in sorted(rows, key=lambda row: row.at):
            now_ms = round(row.at.timestamp() * 1000)
            start_ms, last_ms = self.visit.get() or (now_ms, now_ms)
            if now_ms - last_ms > GAP_MS:
                yield from self.over(key)  # the watermark had not yet come so far
                start_ms = last_ms = now_ms
            clicks = (self.pages.getValue((row.page,)) or (0,))[0]
            self.pages.updateValue((row.page,), (clicks + 1,))
            self.visit.update((min(start_ms, now_ms), max(last_ms, now_ms)))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(self.visit.get()[1] + GAP_MS)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield from self.over(key)

    def over(self, key):
        start_ms, last_ms = self.visit.get()
        pages = {page: clicks for (page,), (clicks,) in self.pages.iterator()}
        yield Row(
            user=key[0],
            start=datetime.fromtimestamp(start_ms / 1000),
            minutes=(last_ms - start_ms) // 60_000,
            clicks=sum(pages.values()),
            favourite=max(sorted(pages), key=pages.get),
        )
        self.visit.clear()
        self.pages.clear()

    def close(self):
        pass


CLICKS = [  # (time, user, page), a batch in each line
    [("09:00", "ada", "/home"), ("09:02", "ada", "/boats"), ("09:05", "bob", "/home")],
    [("09:20", "ada", "/boats"), ("09:25", "bob", "/maps"), ("09:04", "ada", "/boats")],
    [("10:10", "ada", "/maps"), ("10:11", "cyd", "/home")],
    [("11:30", "cyd", "/boats")],
    [("13:00", "dee", "/home")],
]


def show(frame, batch):
    for v in frame.collect():
        print(
            f"{v.user} came at {v.start:%H:%M} and stayed {v.minutes} minutes: "
            f"{v.clicks} clicks, mostly on {v.favourite}"
        )


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        for number, batch in enumerate(CLICKS):
            rows = [{"at": f"2024-05-01 {t}:00", "user": u, "page": p} for t, u, p in batch]
            path = Path(directory, f"{number}.json")
            path.write_text("\n".join(map(json.dumps, rows)))
            os.utime(path, (number, number))  # files are taken by their age, one a batch
        clicks = (
            spark.readStream.schema("at timestamp, user string, page string")
            .option("maxFilesPerTrigger", 1)
            .json(directory)
            .withWatermark("at", "10 minutes")
        )
        visits = (
            braided.stream(clicks)
            .groupBy("user")
            .transformWithState(
                statefulProcessor=Visits(),
                outputStructType="user string, start timestamp, minutes int, clicks int, "
                "favourite string",
                outputMode="Append",
                timeMode="EventTime",
            )
        )
        query = visits.writeStream.foreachBatch(show).trigger(availableNow=True).start()
        query.awaitTermination()
