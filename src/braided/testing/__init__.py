"""Tests of flows and operators: see `StreamTest`."""

from __future__ import annotations

from braided.testing.stream import StreamTest

__all__ = ["StreamTest"]
