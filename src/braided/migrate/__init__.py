"""Migration of a running dataflow to other executors: what follows what, and what it took.

Pure: events in, instructions out; it imports nothing else of Braided. `query/migrating.py`
brings the events and carries out the instructions.
"""
