"""The policies that come with Braided, one module for each idea or paper.

A policy sees the view and the limits (`control/policy.py`) and gives back wishes or a table; it
touches nothing else. `control/registry.py` knows them by name.
"""
