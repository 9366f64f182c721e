import braided
from pyspark.sql import SparkSession


class Threshold(braided.Operator):
    stored: float = float("-inf")  # annotated fields are the state of one key

    def onRow(self, row):
        if abs(row.value - self.stored) > 10:
            self.stored = row.value
            yield row


spark = SparkSession.builder.master("local[6]").getOrCreate()  # six tasks at a time
ticks = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 6).load()
readings = ticks.selectExpr("value % 3 AS id", "value * 2.5D AS value")
changes = braided.stream(readings).groupBy("id").apply(Threshold, "id long, value double")
writer = changes.writeStream.format("console").trigger(processingTime="2 seconds")
query = writer.option("braided.channels", 2).start()
query.rescale(6)  # while it runs; its state moves along
query.awaitTermination(30)
query.stop()
