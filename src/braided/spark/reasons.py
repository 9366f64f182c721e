"""What happened, in one line and with the lines of a user's code, out of an error that Spark made.

Spark's text of an error is as long as the way that it took: what a UDF or a data source said stands
in the middle, between frames of the JVM, of py4j and of PySpark.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

__all__ = ["is_of_spark", "lines_in_between", "reason"]

_NOT_OF_USERS = (
    f"{Path(__file__).parents[1]}/",
    f"{Path(pyspark.__file__).parent}/",
    "/pyspark.zip/",
    "/py4j/",
    "<frozen ",
)
"""Parts of the paths of files whose lines are of no help to a user."""

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t].*\n|\n)*)(\S.*)")
_CAUSE = re.compile(r"^(?:Caused by)?: (?:[\w$]+\.)*([\w$]+): (.+)$", re.MULTILINE)


def is_of_spark(error: BaseException) -> bool:
    """Whether Spark raised it, or the way to Spark did."""
    return isinstance(error, PySparkException | Py4JError)


def reason(error: BaseException) -> str:
    """What happened, and after it, each on lines of their own, where in a user's code it did."""
    return "\n".join(filter(None, (_said(error), lines_in_between(error))))


def lines_in_between(error: BaseException) -> str:
    """The lines of a user's code on the way of an error, as a traceback has them."""
    frames = traceback.extract_tb(error.__traceback__)
    return "".join(traceback.format_list([f for f in frames if _is_user(f.filename)])).rstrip()


def _said(error: BaseException) -> str:
    if not is_of_spark(error):
        return f"{type(error).__name__}: {error}"
    captured: Any = error
    text = str(getattr(captured, "_desc", None) or error)
    if raised := _TRACEBACK.findall(text):
        frames, said = raised[-1]
        return "\n".join(filter(None, (said, _user_frames(frames))))
    if isinstance(error, Py4JError) and (causes := _CAUSE.findall(text)):
        kind, said = causes[-1]
        return f"{kind}: {said}"
    return f"{type(error).__name__}: {text.strip().splitlines()[0] if text.strip() else ''}"


def _user_frames(text: str) -> str:
    """Of the frames of a traceback, those of a user's files."""
    frames = re.split(r'(?m)^(?=  File ")', text)
    return "".join(f for f in frames if f.strip() and _is_user(f.splitlines()[0])).rstrip()


def _is_user(file: str) -> bool:
    return not any(part in file for part in _NOT_OF_USERS)
