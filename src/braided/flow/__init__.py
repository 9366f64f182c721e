"""A flow as a graph of steps, and the way of rows from one to the next.

Here are the graph, the inputs, the stateless steps, what a keyed step is (`step.py`), and the route
of a row, which computes in SQL how a key becomes a slot and a slot a channel (`route.py`). That a
key's slot is its hash modulo the slots is a format, because state lies by it; `hash_slot` in
`control/routing/pins.py` is the same rule in Python. It may use `tasks`, `spark` and what is below
them, and does not know which kinds of keyed steps there are.
"""
