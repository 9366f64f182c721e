"""Measure, decide, plan: pure functions over values, with no Spark, clock or randomness inside.

The loop and what a policy is are here; windows, routing tables and the policies themselves are in
folders of their own. It imports nothing else of Braided, so that the simulator, the benchmarks and
a running query drive the very same code.
"""
