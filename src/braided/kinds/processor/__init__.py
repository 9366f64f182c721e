"""The kind of step that Spark's `StatefulProcessor` and its relatives make, unchanged.

A task hands the processor a handle, whose values, lists and maps lie in `store/variables`. It may
use the operator kind, whose loop over keys it shares.
"""
