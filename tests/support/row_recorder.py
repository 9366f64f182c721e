"""A writer for `foreach`, in a module that workers can import."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

__all__ = ["Recorder"]


class Recorder:
    """Notes every call of a partition in a file of its own."""

    def __init__(self, directory: Path, refuse: tuple[int, ...] = (), fail_at: int = -1) -> None:
        self._directory = directory
        self._refuse = refuse
        self._fail_at = fail_at
        directory.mkdir(exist_ok=True)

    def open(self, partition: int, epoch: int) -> bool:
        self._file = open(self._directory / uuid.uuid4().hex, "w")  # noqa: SIM115
        self._say("open", partition, epoch)
        return epoch not in self._refuse

    def process(self, row: Any) -> None:
        assert row.k == row["k"] == row[0]
        if row.seq == self._fail_at:
            raise LookupError(f"no place for {row.seq}")
        self._say("row", *row)

    def close(self, error: Exception | None) -> None:
        self._say("close", repr(error) if error else None)
        self._file.close()

    def _say(self, *words: Any) -> None:
        print(json.dumps(words), file=self._file, flush=True)
