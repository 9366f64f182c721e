"""One query: its checkpoint opened, its batches admitted, processed, committed and published.

`engine.py` is what Spark calls for every batch and reads top to bottom. What happens on the driver
around a batch is here, what happens in tasks is not. It may use everything below `api` but for the
kinds, which it knows as keyed steps of a flow, and `inspect`.
"""
