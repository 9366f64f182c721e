"""Where channels run: the hosts that there are, which slots each has, and the way from one table to
the next when state has to move between them.

Nothing here is needed for being right. A channel that runs elsewhere than it should reads its slots
from the checkpoint, and the batch waits for that.
"""
