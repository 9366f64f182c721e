"""A user's value as errors show it."""

from __future__ import annotations

from typing import Any

__all__ = ["short_repr"]


def short_repr(value: Any) -> str:
    """Its repr, in no more than 80 characters."""
    try:
        text = repr(value)
    except Exception:  # a user's __repr__ must not hide the real error
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."
