"""From samples of batches to the view that policies decide on: windows, loads, overheads.

Values and arithmetic only. It knows routing tables and nothing of policies or of the loop.
"""
