"""One spelling for every path: of two that lead to the same place, manifests have one."""

from __future__ import annotations

import os
import re

from braided.errors import UnsupportedError

__all__ = ["local_path", "one_spelling"]


def local_path(location: str) -> str:
    """An absolute path, from a path or a file: URI, without `..` and double slashes: Hadoop and the
    operating system do not read these alike.
    """
    if location.startswith("file:"):
        location = "/" + location.removeprefix("file:").lstrip("/")
    if "://" in location:
        raise UnsupportedError(
            f"{location}: checkpoints and file output are on a local or mounted file system for now"
        )
    return "/" + os.path.abspath(location).lstrip("/")


def one_spelling(location: str) -> str:
    """The same for a local path; of one elsewhere, the address without user and password."""
    if location.startswith("file:") or "://" not in location:
        return local_path(location)
    return re.sub("://[^/@]*@", "://", location).rstrip("/")
