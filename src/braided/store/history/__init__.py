"""What batches made true: runs of changes, manifests that name them, garbage that none names.

Manifests and views are values with a pure `apply`. It may use `store/durable` alone.
"""
