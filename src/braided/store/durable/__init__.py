"""Where durable bytes are and how they get there: locations, the store port, leases.

The lowest part of `store` and the only way to a checkpoint's files, of whose contents it knows
nothing. The cache of a host, which nothing depends on, has files of its own
(`store/slots/lmdb_cache.py`).
"""
