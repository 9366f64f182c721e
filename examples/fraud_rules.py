"""Two rules over card payments, in event time.

A small payment that a large one follows within a minute is a card being tried out. Payments in
three countries within ten minutes are a card that was copied. Timers forget what is too old.
"""

import json
import os
import tempfile
from pathlib import Path

import braided
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

TRIED_MS = 60 * 1000
COPIED_MS = 10 * 60 * 1000
SMALL, LARGE, COUNTRIES = 1.0, 500.0, 3


class Rules(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.tried = handle.getValueState("tried", "at_ms long, amount double")
        self.seen = handle.getMapState("seen", "country string", "at_ms long")

    def handleInputRows(self, key, rows, timerValues):
        for row in sorted(rows, key=lambda r: r.at):
            now_ms = round(row.at.timestamp() * 1000)
            tried = self.tried.get()
            if tried and row.amount > LARGE and now_ms - tried[0] <= TRIED_MS:
                why = f"{row.amount:.2f} came {(now_ms - tried[0]) // 1000} s after {tried[1]:.2f}"
                yield Row(card=key[0], at=row.at, why=why)
                self.tried.clear()
            if row.amount < SMALL:
                self.tried.update((now_ms, row.amount))
                self.handle.registerTimer(now_ms + TRIED_MS)
            self.seen.updateValue((row.country,), (now_ms,))
            self.handle.registerTimer(now_ms + COPIED_MS)
            recent = [c for (c,), (ms,) in self.seen.iterator() if now_ms - ms <= COPIED_MS]
            if len(recent) >= COUNTRIES:
                why = f"paid in {', '.join(sorted(recent))} within ten minutes"
                yield Row(card=key[0], at=row.at, why=why)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        now_ms = expiredTimerInfo.getExpiryTimeInMs()
        tried = self.tried.get()
        if tried and tried[0] + TRIED_MS <= now_ms:
            self.tried.clear()
        for (country,), (ms,) in list(self.seen.iterator()):
            if ms + COPIED_MS <= now_ms:
                self.seen.removeKey((country,))
        return iter([])

    def close(self):
        pass


PAYMENTS = [  # (time, card, amount, country)
    [("12:00:00", "4711", 0.50, "CZ"), ("12:00:05", "1234", 20.0, "DE")],
    [("12:00:40", "4711", 899.0, "CZ"), ("12:03:00", "1234", 75.0, "FR")],
    [("12:08:00", "1234", 35.0, "BR"), ("12:09:00", "5678", 0.10, "US")],
    [("12:30:00", "5678", 950.0, "US"), ("12:31:00", "1234", 5.0, "DE")],
]

if __name__ == "__main__":
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        for number, batch in enumerate(PAYMENTS):
            rows = [
                {"at": f"2024-05-01 {t}", "card": card, "amount": amount, "country": country}
                for t, card, amount, country in batch
            ]
            path = Path(directory, f"{number}.json")
            path.write_text("\n".join(map(json.dumps, rows)))
            os.utime(path, (number, number))  # files are taken by their age, one a batch
        payments = (
            spark.readStream.schema("at timestamp, card string, amount double, country string")
            .option("maxFilesPerTrigger", 1)
            .json(directory)
            .withWatermark("at", "1 minute")
        )
        alerts = (
            braided.stream(payments)
            .groupBy("card")
            .transformWithState(
                statefulProcessor=Rules(),
                outputStructType="card string, at timestamp, why string",
                outputMode="Append",
                timeMode="EventTime",
            )
        )
        found = []
        query = (
            alerts.writeStream.foreachBatch(lambda frame, batch: found.extend(frame.collect()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        for alert in found:
            print(f"card {alert.card} at {alert.at:%H:%M:%S}: {alert.why}")
