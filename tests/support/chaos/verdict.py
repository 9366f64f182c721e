"""What a query shows and keeps, held against the oracle: read from files, without Spark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from braided.errors import CheckpointCorruptError, StateNotFoundError
from braided.inspect.frames import state_task
from braided.inspect.versions import Versions
from braided.store.durable.local_store import LocalStore
from support.chaos.oracle import Oracle, OutputRow, State

__all__ = ["Judge", "WrongRows", "published_files", "state_of"]

_SHOWN = 8


class WrongRows(AssertionError):
    """Rows that nobody should see, or see twice; or none where there were some."""

    def __init__(self, what: str, rows: list[Any]) -> None:
        super().__init__(f"{len(rows)} rows are wrong: {what}: {rows[:_SHOWN]}")
        self.count = len(rows)


class Judge:
    """Follows what a query gives out, file by file, and compares it with what it should."""

    def __init__(self, root: Path, output: Path, checkpoint: Path) -> None:
        """`root` is what the paths in the sink's log are below."""
        self._root, self._output = root, output
        self._store = LocalStore(str(checkpoint / "braided"))
        self.rows_checked = 0
        self.forget()

    def forget(self) -> None:
        """Everything is read anew."""
        self._read: set[Path] = set()
        self._shown: Counter[OutputRow] = Counter()

    def is_exact(self, oracle: Oracle) -> bool:
        """Whether all there is to be is there; what must never be is raised at once."""
        self._read_output()
        wrong = self._shown - oracle.output
        if wrong:
            raise WrongRows(
                "readers see them, the oracle does not, or fewer", sorted(wrong.items())
            )
        if self._shown != oracle.output:
            return False
        state = state_of(self._store)
        if state != oracle.state():
            return False
        self.rows_checked += sum(map(len, state.values()))
        return True

    def differences(self, oracle: Oracle) -> str:
        """What is missing, for a person to read."""
        missing = sorted((oracle.output - self._shown).items())
        lines = [f"{len(missing)} rows of the output are missing: {missing[:_SHOWN]}"]
        have, want = state_of(self._store) or {}, oracle.state()
        for name, keys in want.items():
            held = have.get(name, {})
            other = [
                (key, held.get(key), keys.get(key))
                for key in sorted(held.keys() | keys.keys())
                if held.get(key) != keys.get(key)
            ]
            lines.append(f"{name}: {len(other)} keys differ (key, is, should be): {other[:_SHOWN]}")
        return "\n".join(lines)

    def newest_batch(self) -> int:
        try:
            return Versions(self._store).retained()[-1]
        except StateNotFoundError:
            return -1

    def pinned_keys(self) -> int:
        operators = Versions(self._store).view(None).operators
        return sum(len(version.pins) for version in operators.values())

    def assigned_operators(self) -> int:
        operators = Versions(self._store).view(None).operators
        return sum(bool(version.assigned.name) for version in operators.values())

    def epochs(self) -> int:
        if self.newest_batch() < 0:
            return 0
        operators = Versions(self._store).view(None).operators
        return sum(version.epoch for version in operators.values())

    def _read_output(self) -> None:
        listed = published_files(self._output, self._root)
        twice = [path for path, times in Counter(listed).items() if times > 1]
        if twice:
            raise WrongRows("the sink's log has files twice", twice)
        gone = sorted(self._read - set(listed))
        if gone:
            raise WrongRows("the sink's log has lost files that it had", gone)
        for path in listed:
            if path not in self._read:
                table = pq.ParquetFile(path).read()
                rows = list(zip(*[column.to_pylist() for column in table.columns], strict=True))
                self._read.add(path)
                self._shown.update(rows)
                self.rows_checked += len(rows)


def published_files(output: Path, root: Path) -> list[Path]:
    """Follows a file sink's log as Spark's readers do: the newest compacted file, then the rest."""
    log = output / "_spark_metadata"
    if not log.is_dir():
        return []
    names = [path.name for path in log.iterdir() if path.name[0].isdigit()]
    compacted = max((int(n.partition(".")[0]) for n in names if n.endswith(".compact")), default=-1)
    plain = sorted(int(name) for name in names if name.isdigit() and int(name) > compacted)
    chosen = [f"{compacted}.compact"] if compacted >= 0 else []
    files = []
    for name in [*chosen, *map(str, plain)]:
        version, *entries = (log / name).read_text().splitlines()
        assert version == "v1", f"{log / name} begins with {version!r}"
        for entry in map(json.loads, entries):
            assert entry["action"] == "add", entry
            files.append(root / unquote(urlsplit(entry["path"]).path).lstrip("/"))
    return files


def state_of(store: LocalStore) -> State | None:
    """The committed state; None while the query is about to delete what is being read."""
    try:
        view = Versions(store).view(None)
        return {name: _keys(store, view, name) for name in view.operators}
    except StateNotFoundError:
        return None
    except CheckpointCorruptError:
        if Versions(store).view(None).batch == view.batch:
            raise
        return None


def _keys(store: LocalStore, view: Any, name: str) -> dict[int, tuple[Any, ...]]:
    task, _ = state_task(store, view, name)
    found: dict[int, tuple[Any, ...]] = {}
    for chunk in task.read(list(range(view.operators[name].meta.slots))):
        for row in chunk.to_pylist():
            [key] = row["key"].values()
            timers = tuple(round(time.timestamp() * 1000) for time in row["timers"])
            assert key not in found, f"key {key} of {name} is stored twice"
            found[key] = (*row["state"].values(), timers)
    return found
