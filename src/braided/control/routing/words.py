"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["counted", "seconds_in_words", "size_in_words"]

_KILO = 1000


def counted(number: int, noun: str) -> str:
    """1 slot, 2 slots."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size_in_words(size_bytes: float) -> str:
    if size_bytes < _KILO:
        return counted(round(size_bytes), "byte")
    for unit in ("kB", "MB", "GB"):
        size_bytes /= _KILO
        if size_bytes < _KILO:
            return f"{size_bytes:.1f} {unit}"
    return f"{size_bytes / _KILO:.1f} TB"


def seconds_in_words(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
