"""Errors on their way from a worker to the driver.

Spark passes a worker's exception on as text inside its own. A typed error of ours travels as one
line of JSON in that text and is raised again by the driver as what it was.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from braided import errors
from braided.errors import (
    BatchError,
    BraidedError,
    OperatorError,
    OutputSchemaError,
    StateValueError,
)

__all__ = [
    "Words",
    "diverted",
    "from_worker",
    "is_interrupt",
    "is_lost_worker",
    "located",
    "operator_failure",
    "to_text",
    "user_lines",
]

_LONGEST = 500
_MARK = re.compile(r"braided-error (\{.*\})$", re.MULTILINE)
_LOST = re.compile(
    r"Python worker exited unexpectedly|worker crashed|Python worker failed to connect back|"
    r"Connection reset|ExecutorLostFailure|Could not recover from a failed barrier"
)
_INTERRUPT = re.compile(
    r"InterruptedException|ClosedByInterruptException|cancelled part of cancelled job group|"
    r"Job \d+ cancelled|SparkContext was shut down"
)


class Words(str):
    """What stands in an error where a row would, and is shown without quotes."""

    __repr__ = str.__str__


class _Parcel(msgspec.Struct):
    kind: str
    message: str


def operator_failure(
    error: Exception, operator: str, key: Any, row: Any, batch: int, advice: str | None
) -> OperatorError:
    """The error of user code that raised: where, with what, and its own lines of the traceback."""
    return OperatorError(
        f"operator {operator!r} raised {type(error).__name__}: {_short(error)}\n"
        + (f"  {advice}\n" if advice else "")
        + f"  key:   {_short(key)}\n"
        f"  row:   {_short(_shown(row))}\n"
        f"  batch: {batch}, which is not committed: fix the operator and start the query again\n"
        f"{user_lines(error)}"
    )


def located(
    error: OutputSchemaError | StateValueError, key: Any, row: Any, batch: int, lines: str
) -> OutputSchemaError | StateValueError:
    """An error in what user code gave out or put into its state, with where and with what."""
    kind = StateValueError if isinstance(error, StateValueError) else OutputSchemaError
    told = kind(
        f"{error}\n  key:   {_short(key)}\n"
        + ("" if row is None else f"  row:   {_short(_shown(row))}\n")
        + f"  batch: {batch}, which is not committed: fix the operator and start the query again"
        + (f"\n{lines}" if lines else "")
    )
    told.is_located = True
    return told


def diverted(error: Exception) -> str:
    """An error as the dead letters tell it."""
    said = f"{type(error).__name__}: {_short(error)}"
    return "\n".join(filter(None, (said, user_lines(error))))


_HOME = Path(__file__).parents[1]
_BETWEEN = (
    *(f"{_HOME / each}" for each in ("kinds", "store", "tasks", "dict_functions/decorator.py")),
    "<codec of ",
)
"""Files of ours between Spark and a user's code, whose lines are of no help to the user."""


def user_lines(error: BaseException) -> str:
    """The lines of a user's code that an error came by, as a traceback has them."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_BETWEEN)
    ]
    return "".join(traceback.format_list(frames)).rstrip()


def _shown(row: Any) -> Any:
    if not isinstance(row, pa.Table):
        return row
    [first] = row.slice(0, 1).to_pylist() or [None]
    return first if row.num_rows == 1 else Words(f"{row.num_rows} rows, the first {first}")


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def to_text(error: BraidedError) -> str:
    """An error as the line of JSON that `from_worker` finds."""
    parcel = _Parcel(type(error).__name__, str(error))
    return f"braided-error {msgspec.json.encode(parcel).decode()}"


def from_worker(error: BaseException) -> BraidedError | None:
    """The typed error that a worker raised, if this is one."""
    mark = _MARK.search(str(error))
    if mark is None:
        return None
    parcel = msgspec.json.decode(mark.group(1), type=_Parcel)
    kind = getattr(errors, parcel.kind, BatchError)
    raised: BraidedError = kind(parcel.message)
    return raised


def is_lost_worker(error: BaseException) -> bool:
    """Whether a worker process or executor died: then the batch can be tried again as it is."""
    return _LOST.search(str(error)) is not None


def is_interrupt(error: BaseException) -> bool:
    """Whether the batch ended because the query is being stopped."""
    return _INTERRUPT.search(str(error)) is not None
