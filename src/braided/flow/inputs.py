"""The inputs of a flow as the one DataFrame that Spark hands over batch by batch, and back.

One input is itself. Several travel as one union: a number says whose row it is, and each input has
a column for its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from braided.flow.graph import Input
from braided.flow.route import first_order, sequence

__all__ = ["Inputs"]

_NUMBER = "__braided_input"


class Inputs:
    """The roots of a flow."""

    def __init__(self, roots: Sequence[Input], order_by: str | None) -> None:
        self._roots = roots
        sequences = [sequence(root.source.schema, order_by) for root in roots]
        longest = max(map(len, sequences))
        self._admitted = [
            first_order([*sql, *["bigint(0)"] * (longest - len(sql))]) for sql in sequences
        ]
        self.order = 1 + longest
        """Order columns of every input: age, then sequence."""

    def joined(self) -> DataFrame:
        """What the query reads."""
        if len(self._roots) == 1:
            return self._roots[0].source
        frames = [root.source for root in self._roots]
        parts = []
        for number, frame in enumerate(frames):
            columns = [
                F.struct(*[frame[name] for name in frame.columns])
                if own is frame
                else F.lit(None).cast(own.schema)
                for own in frames
            ]
            named = [column.alias(f"{_NUMBER}{i}") for i, column in enumerate(columns)]
            parts.append(frame.select(F.lit(number).alias(_NUMBER), *named))
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.union(part)
        return whole

    def parted(self, df: DataFrame) -> dict[Input, tuple[DataFrame, list[str]]]:
        """Each input's rows in a batch, and SQL for their order columns."""
        if len(self._roots) == 1:
            return {self._roots[0]: (df, self._admitted[0])}
        return {
            root: (df.filter(f"{_NUMBER} = {i}").select(f"{_NUMBER}{i}.*"), self._admitted[i])
            for i, root in enumerate(self._roots)
        }
