"""The committed state of a checkpoint, read from durable files: versions, keys, frames.

Nothing here runs or writes: no lease is taken and no cache is touched. It may use `store`,
`spark`, `tasks`, `flow` and those of `kinds`, which know how to read what they keep.
"""
