"""Sessions: the clicks of a user with no pause of 30 seconds or more between them.

The same rows as Spark's session_window gives in append mode, also when clicks come out of order.
"""

from datetime import datetime

import braided
from pyspark.sql import SparkSession

GAP_MS = 30_000


class Sessions(braided.Operator):
    # What is open, as (start, end, clicks): end is when the session is over if nothing more comes.
    open: list[tuple[int, int, int]] = []

    def onRow(self, row):
        start = round(row.t.timestamp() * 1000)
        end, clicks, others = start + GAP_MS, 1, []
        for session in self.open:
            if session[0] < end and start < session[1]:  # one session with the click
                start, end = min(start, session[0]), max(end, session[1])
                clicks += session[2]
                self.deleteTimer(session[1])
            else:
                others.append(session)
        self.open = [*others, (start, end, clicks)]
        for session in self.open:
            self.setTimer(session[1])

    def onTimer(self, fired):
        now = round(fired.timestamp() * 1000)
        for start, end, clicks in sorted(self.open):
            if end <= now:
                yield self.key.user, datetime.fromtimestamp(start / 1000), clicks
        self.open = [session for session in self.open if session[1] > now]


if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    ticks = spark.readStream.format("rate").load()
    visits = ticks.where("value % 60 < 20")  # forty seconds of silence after twenty clicks
    clicks = visits.selectExpr("value % 2 AS user", "timestamp AS t")
    sessions = (
        braided.stream(clicks.withWatermark("t", "5 seconds"))
        .groupBy("user")
        .apply(Sessions, "user long, start timestamp, clicks long", timeMode="EventTime")
    )
    query = sessions.writeStream.format("console").start()
    query.awaitTermination(180)
    query.stop()
