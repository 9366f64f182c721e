"""What the shares of a split key came to in a batch, merged into its state.

Unlike hooks, `merge` runs in the driver: for a few keys a batch, and what it makes of them is part
of the commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from braided.errors import OperatorDefinitionError
from braided.kinds.class_merging import explained
from braided.kinds.operator.program import Program
from braided.kinds.operator.runtime import OperatorRuntime
from braided.tasks.spec import BatchSpec

__all__ = ["merge_parts"]


def merge_parts(
    program: Program,
    history: tuple[str, ...],
    batch: BatchSpec,
    key: bytes,
    whole: bytes | None,
    parts: Sequence[bytes],
) -> bytes | None:
    """The record of a key after `merge` was called on its state with each of the parts in turn;
    None for a key that has none then.
    """
    runtime, other = (
        OperatorRuntime(program.operator, batch.batch_time_ms, batch.known_watermark_ms, history)
        for _ in range(2)
    )
    (key_row,) = program.key_rows.rows_of(program.keys.decode_batch([key]))
    runtime.open(key_row, whole)
    with explained(program.name, key_row, len(parts), batch.batch, runtime.advice):
        for part in parts:
            other.open(key_row, part)
            result = runtime.op.merge(other.op)
            if result is not None and result is not runtime.op:
                raise OperatorDefinitionError(
                    f"{program.name}.merge returned {type(result).__name__}; it takes what the "
                    "other one has into self, and returns nothing"
                )
        return runtime.close()
