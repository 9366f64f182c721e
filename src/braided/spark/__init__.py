"""Everything that reaches below PySpark: the JVM, plans, Spark's logs, its worker processes.

What depends on the internals of one version of Spark is to be found here when the next version
comes; `scripts/layers.py` lists the few exceptions. It may use `store`, `errors` and
`release` alone.
"""
