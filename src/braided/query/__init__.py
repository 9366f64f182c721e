"""One query: its checkpoint opened, its batches admitted, processed, committed and published.

`engine.py` is what Spark calls for every batch and reads top to bottom. What happens on the driver
around a batch is here, what happens in tasks is not. It may use what is below `api`, but neither
`inspect` nor the kinds, each of which is to it a keyed step of a flow.
"""
