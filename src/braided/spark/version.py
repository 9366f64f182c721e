"""Which Spark this is, and which ones Braided is tested with.

What is done in different ways on different versions asks here, and is found in this package: by
`SPARK`, where a version is known to differ, or by looking at what is there.
"""

from __future__ import annotations

import functools
import logging
import re

import pyspark

from braided.errors import UnsupportedError

__all__ = ["NEWEST", "OLDEST", "SPARK", "supported_version", "warn_if_untested"]

OLDEST = (4, 1)
"""Spark has repartitionById, by which rows are routed, from here on."""
NEWEST = (4, 3)

log = logging.getLogger("braided")


def supported_version(text: str) -> tuple[int, int]:
    """The first two numbers of a version of PySpark; refuses one that is too old."""
    numbers = re.match(r"(\d+)\.(\d+)", text)
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if version < OLDEST:
        raise UnsupportedError(
            f"PySpark {text} is too old: Braided needs {_dotted(OLDEST)} to {_dotted(NEWEST)}, "
            f"such as pip install 'pyspark=={_dotted(NEWEST)}.*' brings"
        )
    return version


@functools.cache
def warn_if_untested(version: tuple[int, int]) -> None:
    """Says once that a version is newer than all that Braided was tested with."""
    if version > NEWEST:
        log.warning(
            "Braided is tested with PySpark %s to %s, and this is %s: what it reaches below "
            "PySpark's public API may have changed",
            *map(_dotted, (OLDEST, NEWEST, version)),
        )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


SPARK = supported_version(pyspark.__version__)
"""The version that is here."""
