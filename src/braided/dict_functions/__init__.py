"""`braided.managed`: plain functions over dicts, recognised and run as operators.

The source of a function is read, judged and bound to dicts of one key. It may use `operator` and
`errors`, and of Spark only rows and types.
"""
