"""One spelling for every target: of two that lead to the same place, manifests have one."""

from __future__ import annotations

import re

from braided.store.durable.location import Location

__all__ = ["one_spelling"]

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def one_spelling(target: str) -> str:
    """A location as Spark is told. What is neither an absolute path nor an address stays as it is
    written: the directory that a process was started in says nothing about it.
    """
    if target.startswith("/"):
        return Location.of(target).text
    if _ADDRESS.match(target):
        # Addresses of systems may have secrets behind the question mark.
        return Location.of(target.partition("?")[0].partition("#")[0]).text
    return target
