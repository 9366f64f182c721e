"""A line from the driver to tasks that run: orders go out, words of how far tasks are come back.

The driver has an `OrderPost`, each Python worker an `OrderLine` per query. A line is a convenience,
never a condition: where it can't be had, tasks run as if nobody ever ordered anything. It imports
`errors` at most, and no Spark.
"""
