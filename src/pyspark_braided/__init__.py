"""Where Spark looks for `spark.read.format("braided")`: in modules whose names start with pyspark_.

It looks with the Python that its workers run. Where that is not the one that has Braided, the
source is registered by hand: `spark.dataSource.register(braided.StateSource)`.
"""

from braided.inspect.source import StateSource as DefaultSource

__all__ = ["DefaultSource"]
