"""Slots as tasks use them: keys as bytes, the cache, catching up, a channel's changes.

It may use `store/history` and `store/durable`, to read and write the runs that a slot is made of.
"""
