"""A flow as a graph of steps, and the way of rows from one to the next.

Here are the graph, the inputs, the stateless steps, what a keyed step is (`step.py`), and the only
place that knows how a key becomes a slot and a slot a channel (`route.py`). It may use `tasks`,
`spark` and what is below them, and does not know which kinds of keyed steps there are.
"""
