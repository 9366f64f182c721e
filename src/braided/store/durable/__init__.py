"""Durable files, the register that creates one atomically, and the lease on a checkpoint.

The lowest part of `store` and its only way to a filesystem; it knows nothing of what is written.
"""
