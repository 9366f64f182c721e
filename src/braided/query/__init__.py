"""One query: its checkpoint opened, its batches run and committed, its commands obeyed.

`engine.py` is what Spark calls for every batch and reads top to bottom. It may use everything below
`api`; what happens on the driver around a batch is here, what happens in tasks is not.
"""
