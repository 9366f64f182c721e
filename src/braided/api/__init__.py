"""What users call: `stream`, the grouped stream, the writer, the running query, state as frames.

It turns calls into a flow of steps and sinks, and refuses what can't run in a sentence before
anything starts. It may use every package below it, and is imported by `testing`, the commands and
the package's own `__init__` alone.
"""
