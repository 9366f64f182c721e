"""Tests of operators without Spark, and of whole flows: `OperatorHarness` and `StreamTest`.

Users import it in their tests, and so do ours. It may use `api`, and what is below it to
run an operator by itself.
"""

from __future__ import annotations

from braided.testing.operator import OperatorHarness
from braided.testing.stream import StreamTest

__all__ = ["OperatorHarness", "StreamTest"]
