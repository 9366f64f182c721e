"""Streams to try things on, and the applications that run on them.

They are written as a user writes them and may use what users use; the demo and tests run them.
"""
