"""The kind of step that a `ColumnOperator` class makes.

A task reads the records of thousands of keys as columns (`store/columnar`), calls one hook for all
of them and writes back what has changed. It uses none of the other kinds.
"""
