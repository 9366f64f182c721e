"""Where output goes: prepared before the manifest, published after it.

A sink fulfils `Sink` and knows neither flows nor steps. It may use `spark` for writing and `store`
for the checkpoint's files.
"""
