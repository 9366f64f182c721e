"""Where the driver listens, and the key that proves that one belongs to its query."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LineAddress"]


@dataclass(frozen=True)
class LineAddress:
    """What a task needs to reach the post of its query; it travels with the task."""

    host: str
    port: int
    key: bytes = field(repr=False)  # it would be in every log that shows a task
