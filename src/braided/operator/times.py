"""Times as users see them (local time without a zone, as in Spark's Rows) and as ms since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["as_datetime", "as_ms"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def as_ms(when: datetime | int) -> int:
    """Milliseconds since 1970, rounded up: a timer never fires before its time."""
    if isinstance(when, datetime):
        return -((_EPOCH - when.astimezone(UTC)) // _MILLISECOND)
    if isinstance(when, int) and not isinstance(when, bool):
        if not -(2**63) <= when < 2**63:
            raise ValueError(f"{when} ms since 1970 is out of range")
        return int(when)
    raise TypeError(
        f"a time is a datetime or an int of milliseconds since 1970, not {when!r} of type "
        f"{type(when).__name__}"
    )


def as_datetime(ms: int) -> datetime:
    """The local time of this instant, without a zone; `fold` tells the hours of a clock change."""
    return datetime.fromtimestamp(ms // 1000).replace(microsecond=ms % 1000 * 1000)
