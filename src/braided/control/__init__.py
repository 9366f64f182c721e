"""Measure, decide, plan: pure functions over values, with no Spark, clock or randomness inside."""
