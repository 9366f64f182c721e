"""Slots as tasks use them: keys as bytes, the cache, catching up, a channel's changes.

It may use `store/history`, to read and write the runs that a slot is made of.
"""
