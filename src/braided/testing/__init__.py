"""Tests of operators without a cluster: see `OperatorHarness`."""

from __future__ import annotations

from braided.testing.operator import OperatorHarness

__all__ = ["OperatorHarness"]
