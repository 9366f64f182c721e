"""Streams to try things on, and the applications that run on them."""
