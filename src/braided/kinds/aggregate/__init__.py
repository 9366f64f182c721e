"""The kind of step that `groupBy(...).agg(...)` makes.

Spark aggregates each batch, with our exchange between the two halves, and a task merges the result
into the state (`store/aggregates`). It uses none of the other kinds.
"""
