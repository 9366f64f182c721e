"""Where channels run: the hosts that there are, which slots each has, and the way from one table to
the next when state has to move between them.

It may use `tasks`, `options` and what these may, and knows neither flows nor kinds of steps.
Nothing here is needed for being right. A channel that runs elsewhere than it should reads its slots
from the checkpoint, and the batch waits for that.
"""
