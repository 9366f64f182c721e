"""Where something is: every path that a user gives, read as Hadoop reads it.

A location is local (a path, or a `file:` URI) or it has the scheme of a store. Only a local one is
ever a `pathlib.Path`: `hdfs:/x` and `dbfs:/x` look like paths with a colon in them and are not.
"""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Location"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")


@dataclass(frozen=True)
class Location:
    """A place for files. Of two spellings of one place, both are the same location."""

    scheme: str
    """Empty for a local path."""
    text: str
    """As Spark is told: an absolute path, or an address without user and password."""

    @classmethod
    def of(cls, given: str | Path | Location) -> Location:
        """What a user's path means. A relative one is below the working directory."""
        if isinstance(given, Location):
            return given
        text = str(given)
        match = None if isinstance(given, Path) else _SCHEME.match(text)
        scheme = "" if match is None else match[1].lower()
        if scheme in ("", "file"):
            # As Hadoop: `%20` in a file: URI is these three characters and no space.
            path = "/" + text[5:].lstrip("/") if scheme else text
            # `..` and double slashes are not read alike by Hadoop and the operating system.
            return cls("", "/" + os.path.abspath(path).lstrip("/"))
        # By hand: `?` and `#` are letters of a path like others, as in Hadoop.
        rest = text[len(scheme) + 1 :]
        authority, path = "", rest
        if rest.startswith("//"):
            authority, slash, path = rest[2:].partition("/")
            path = slash + path
        # Users and passwords are secrets; but Azure writes container@account.
        if scheme not in _CONTAINERS:
            authority = authority.rpartition("@")[2]
        # Double slashes and dots would be other places to a store, and are not to Hadoop.
        path = posixpath.normpath(f"/{path.lstrip('/')}") if path.strip("/") else ""
        return cls(scheme, f"{scheme}:{f'//{authority}' if authority else ''}{path}")

    @property
    def local(self) -> Path | None:
        """The path, if it is one."""
        return None if self.scheme else Path(self.text)

    @property
    def authority(self) -> str:
        """The bucket, the container or the host."""
        rest = self.text[len(self.scheme) + 1 :]
        return rest[2:].partition("/")[0] if self.scheme and rest.startswith("//") else ""

    @property
    def key(self) -> str:
        """The path in the store, without a slash in front."""
        if not self.scheme:
            return self.text
        rest = self.text[len(self.scheme) + 1 :]
        return rest[2:].partition("/")[2] if rest.startswith("//") else rest.lstrip("/")

    def __truediv__(self, name: str) -> Location:
        return Location(self.scheme, f"{self.text.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.text
