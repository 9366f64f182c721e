"""The policies that come with Braided.

Each scale policy has a module (`off` is beside `ds2`); the balance policies, which are small, share
`balancers.py`. `queueing.py` is the theory that `model` goes by. `guarded.py` wraps the policies of
a query, so that one that fails harms nobody.

A policy sees the view and the limits (`control/policy.py`) and gives back wishes or a table; it
touches nothing else. `control/registry.py` knows them by name.
"""
