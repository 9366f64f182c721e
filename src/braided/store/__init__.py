"""State on disk and in the cache: files, manifests, runs, slots, records, variables.

No Spark, no user code, no decision: keys and values are bytes, batches are numbers. It may use
`errors` and `failpoints` alone. Its folders build on each other in one direction: durable files,
the history of batches, slots, and on top what lies in them.
"""
