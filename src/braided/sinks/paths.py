"""One spelling for every path: of two that lead to the same place, manifests have one."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit, urlunsplit

from braided.errors import UnsupportedError

__all__ = ["local_path", "one_spelling"]

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")


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
    """An absolute path as `local_path` has it; an address elsewhere without user, password and
    query, which may be secrets. What is neither stays as it is written: the directory that a
    process was started in says nothing about it.
    """
    if location.startswith(("file:", "/")):
        return local_path(location)
    if _ADDRESS.match(location) is None:
        return location
    parts = urlsplit(location)
    # Azure writes container@account.
    host = parts.netloc if parts.scheme in _CONTAINERS else parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", "")).rstrip("/")
