"""Servers in the foreground: they run until somebody asks them to end, by Ctrl-C or by SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["asked_to_end"]


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """Set by the first signal; while daemons start and stop, a second one is needed to break in."""
    asked = threading.Event()

    def answer(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    signals = (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = [signal.signal(number, answer) for number in signals]
    try:
        yield asked
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
