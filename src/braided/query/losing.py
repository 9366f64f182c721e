"""How a query ends that is not alone on its checkpoint, and what to tell whoever started it."""

from __future__ import annotations

import json

from braided.errors import BraidedError, FencedError, LateWriteError
from braided.store.durable.lease import Lease

__all__ = ["explain_concurrent", "fenced", "refuse_replaced"]

_CONCURRENT = ("Concurrent update to the log", "CONCURRENT_STREAM_LOG_UPDATE")
"""What Spark says of an entry of its logs that is there before it has written it."""


def fenced(lease: Lease, location: str) -> FencedError:
    """For a query that has been replaced."""
    heir = _successor(lease) or "another query"
    return FencedError(
        f"{heir} has taken over {location}; this query ends, and commits and publishes nothing "
        "more. Two must not run on one checkpoint: leave it to that one, or stop that one first"
    )


def explain_concurrent(said: str, lease: Lease, location: str) -> BraidedError | None:
    """For a query that Spark ended: why, if somebody else has written to its logs."""
    if not any(words in said for words in _CONCURRENT):
        return None
    if _successor(lease) is not None:
        return fenced(lease, location)
    return LateWriteError(
        f"an entry of Spark's logs in {location} was there before this query had written it: the "
        "query that had the checkpoint before has written it late. Nothing is lost or doubled by "
        "that. Start the query again: it goes on with that entry"
    )


def refuse_replaced(planned: list[str] | None, offsets: str, batch: int, location: str) -> None:
    """LateWriteError if the offsets of a batch, as they are stored, are not those that it runs by.

    In an object store an entry can be replaced. A query that was taken over from while it wrote the
    offsets of a batch may replace those that its heir has written of it, between that and the look
    at them: the manifest would keep them, and the next start read some input twice, or never.
    """
    stored = offsets.strip("\n").split("\n")[2:]
    if planned is None or len(planned) != len(stored):
        return
    if all(map(_say_the_same, planned, stored)):
        return
    raise LateWriteError(
        f"the offsets of batch {batch} in {location} are not those that this query has written: "
        "the query that had the checkpoint before has written them late. The batch is not "
        "committed, and nothing is lost or doubled by that. Start the query again: it goes on with "
        "that entry"
    )


def _say_the_same(planned: str, stored: str) -> bool:
    if planned == stored:
        return True
    try:
        return bool(json.loads(planned) == json.loads(stored))
    except ValueError:
        return False


def _successor(lease: Lease) -> str | None:
    try:
        return lease.successor()
    except BraidedError:
        return None  # the store can't be asked
