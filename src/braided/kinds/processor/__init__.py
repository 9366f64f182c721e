"""The kind of step that Spark's `StatefulProcessor` and its relatives make, unchanged.

A task hands the processor a handle, whose values, lists and maps lie in `store/variables`. It uses
none of the other kinds; what it has in common with them is in `tasks` and, where rows are sorted
by key, in `kinds/routed_stage.py`.
"""
