"""What users call: `stream`, the grouped stream, the writer, the running query, state as frames.

It turns calls into a flow of steps and sinks, and refuses what can't run in a sentence before
anything starts. It may use what is below it, but for `steering`, which it reaches through
`query`. `testing`, `cli` and the package's own `__init__` alone import it.
"""
