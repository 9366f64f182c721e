"""The state of aggregations: columns of partial results, merged many keys at a time.

It knows numpy and bytes and nothing of Spark's functions; of `store` it may use `slots` alone.
"""
