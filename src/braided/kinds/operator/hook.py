"""The hook of an operator that takes its rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from braided.kinds.operator.program import Program
from braided.kinds.operator.runtime import OperatorRuntime

__all__ = ["Hook", "hook_of"]


class Hook(NamedTuple):
    """What is called with a row, or with a table of rows, of the key that has the operator."""

    name: str
    by_batch: bool
    """Whether it takes tables."""
    call: Callable[[Any], Any]
    checked: Callable[[Any, str], Iterable[Any]] | None
    """Looks at what the hook returned; None where that is sure to be iterable."""


def hook_of(program: Program, runtime: OperatorRuntime) -> Hook:
    op = runtime.op
    if program.sides:
        name, call = "onRow", _either_side(program, op)
    else:
        name = "onBatch" if hasattr(program.operator, "onBatch") else "onRow"
        call = getattr(op, name, _no_rows)
    # What a generator function returns needs no look.
    checked = None if inspect.isgeneratorfunction(call) else runtime.rows_of
    return Hook(name, name == "onBatch", call, checked)


def _either_side(program: Program, op: Any) -> Callable[[Any], Any]:
    left = program.side_rows[0].row_class

    def call(row: Any) -> Any:
        return op.onLeft(row) if type(row) is left else op.onRight(row)

    return call


def _no_rows(rows: Any) -> None:
    """An operator with `onTimer` only takes rows in and does nothing."""
