"""Checkpoints as fixtures: packed without a trace of where they were made, unpacked anywhere.

Checkpoints and sinks name places: the logs of a file source and of a file sink and the manifest's
list of prepared output have absolute paths, the manifest's writer and the lease a path and a host.
In a fixture these are placeholders. Manifests are sealed (each has a checksum over itself and the
checksum of the one before), so whoever changes text in them has to seal them again. The rule is
written out here once more, as it was when the first fixtures were made, and what is not sealed by
it is refused.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import re
import socket
import sqlite3
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

import braided
from compat.source import DIRECTORY

__all__ = ["dead_letters", "exact_state", "pack", "routing", "state_by_key", "unpack"]

_HOME = b"@HOME@"
_ROOT = Path(__file__).resolve().parents[2]
_ARROW_AND_PARQUET = (".arrow", ".parquet", ".db")
_ENVELOPE = re.compile(
    rb'\{"checksum":"(?P<checksum>\w*)","previous":"(?P<previous>\w*)","manifest":(?P<body>.*)\}',
    re.DOTALL,
)


def pack(home: Path, archive: Path) -> None:
    """Everything below `home` but input, caches and Hadoop's checksums, which are optional."""
    host = re.escape(socket.gethostname().encode())

    def scrubbed(text: bytes) -> bytes:
        text = text.replace(str(home).encode(), _HOME)
        text = re.sub(rb"\(pid \d+ on [^)]*\)", b"(pid 1 on host)", text)
        assert b"file:///" not in text and not re.search(rb"\b%b\b" % host, text), text
        return text

    (home / "checkpoint/braided/lease").write_text("")
    _rewrite(home, scrubbed)
    _move_tables(home, str(home), _HOME.decode())
    for path in (home / "checkpoint/braided").glob("dead/*.parquet"):
        _without_places(path)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(home.rglob("*")):
            name = path.relative_to(home)
            if name.parts[0] in ("cache", DIRECTORY) or path.suffix == ".crc":
                continue
            # Nothing of the machine: no user, no time, no mode.
            entry = tarfile.TarInfo(str(name))
            entry.mode = 0o755 if path.is_dir() else 0o644
            entry.type = tarfile.DIRTYPE if path.is_dir() else tarfile.REGTYPE
            data = b"" if path.is_dir() else path.read_bytes()
            entry.size = len(data)
            assert str(home).encode() not in data and str(_ROOT).encode() not in data, path
            tar.addfile(entry, io.BytesIO(data))
    archive.write_bytes(gzip.compress(buffer.getvalue(), 9, mtime=0))


def _without_places(path: Path) -> None:
    """Rewrites a file of dead letters, as it was written but for where the code of then was."""
    letters = pq.read_table(path)
    errors = [error.replace(str(_ROOT), "") for error in letters["error"].to_pylist()]
    pq.write_table(letters.set_column(0, letters.schema.field(0), pa.array(errors)), path)


def unpack(archive: Path, home: Path) -> None:
    """The checkpoint and the sinks as they would be had the query run in `home`."""
    with tarfile.open(archive) as tar:
        tar.extractall(home, filter="data")

    def placed(text: bytes) -> bytes:
        text = text.replace(b"file://" + _HOME, home.as_uri().encode())
        return text.replace(_HOME, str(home).encode())

    _rewrite(home, placed)
    _move_tables(home, _HOME.decode(), str(home))


def _move_tables(home: Path, old: str, new: str) -> None:
    """A stand-in for Delta knows queries by names that have the table's path in them."""
    for path in home.glob("*.db"):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("UPDATE versions SET app = replace(app, ?, ?)", (old, new))
            db.execute("VACUUM")  # or what it was would still be in the file


def _rewrite(home: Path, change: Callable[[bytes], bytes]) -> None:
    """Changes all text files, and seals the manifests again.

    Manifests also have the digests of the copies of Spark's logs of sources, which name files.
    """
    manifests, copies = (home / "checkpoint/braided" / each for each in ("manifests", "sources"))
    digests: dict[bytes, bytes] = {}
    for path in home.rglob("*"):
        if not path.is_file() or path.suffix in (*_ARROW_AND_PARQUET, ".crc"):
            continue
        if path.parent != manifests:
            data = path.read_bytes()
            changed = change(data)
            path.write_bytes(changed)
            if path.parent == copies:
                digests[_digest(data)] = _digest(changed)
    before = sealed = None
    for path in sorted(manifests.iterdir()):
        found = _ENVELOPE.fullmatch(path.read_bytes())
        assert found is not None, f"{path} has not the form of a manifest's file"
        assert before is None or found["previous"] == before, f"{path} does not follow the last"
        assert _checksum(found["previous"], found["body"]) == found["checksum"], path
        before = found["checksum"]
        body = change(found["body"])
        for old, new in digests.items():
            body = body.replace(b'"%b"' % old, b'"%b"' % new)
        previous = found["previous"] if sealed is None else sealed
        sealed = _checksum(previous, body)
        path.write_bytes(
            b'{"checksum":"%b","previous":"%b","manifest":%b}' % (sealed, previous, body)
        )


def _checksum(previous: bytes, body: bytes) -> bytes:
    return _digest(previous + b"\n" + body)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).hexdigest().encode()


# -- what is in a checkpoint, through Braided's public API -----------------------------------------


def exact_state(
    spark: SparkSession, home: Path, operator: str, version: int | None = None
) -> dict[str, Any]:
    """The state of an operator with its types, as plain JSON: all that `braided.state` shows."""
    found = braided.state(home / "checkpoint", spark, operator=operator, version=version)
    rows = [_plain(row) for row in found.collect()]
    return {"schema": found.schema.simpleString(), "rows": sorted(rows, key=json.dumps)}


def _plain(value: Any) -> Any:
    """A value of a Row as JSON has it, the same in every time zone."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Row():
            return {name: _plain(each) for name, each in value.asDict().items()}
        case list():
            return [_plain(each) for each in value]
        case dict():
            return sorted(([_plain(k), _plain(v)] for k, v in value.items()), key=json.dumps)
        case bytes() | bytearray():
            return value.hex()
        case datetime():
            return value.astimezone(UTC).isoformat()
        case _:
            return str(value)


def state_by_key(
    spark: SparkSession, home: Path, operator: str
) -> tuple[dict[Any, dict[str, Any]], dict[Any, list[int]]]:
    """The fields of every key, and the timers, in milliseconds, of those that have any."""
    found = braided.state(home / "checkpoint", spark, operator=operator)
    timers = F.transform("timers", F.unix_millis).alias("timers")
    rows = [(tuple(row.key), row) for row in found.select("key", "state", timers).collect()]
    fields = {key: row.state.asDict(recursive=True) for key, row in rows}
    return fields, {key: row.timers for key, row in rows if row.timers}


def dead_letters(spark: SparkSession, home: Path) -> list[dict[str, Any]]:
    """All that was diverted, without the lines of the traceback."""
    found = braided.deadLetters(home / "checkpoint", spark).collect()
    letters = [
        {
            "error": row.error.partition("\n")[0],
            "operator": row.operator,
            "key": json.loads(row.key),
            "row": None if row.row is None else json.loads(row.row),
            "batch": row.batch,
        }
        for row in found
    ]
    return sorted(letters, key=lambda letter: json.dumps(letter["row"]))


def routing(query: Any) -> dict[str, Any]:
    """The routing tables in effect. What the first sets could not have is left out where there is
    none of it.
    """
    tables: dict[str, Any] = {}
    for name, table in query.routing().items():
        tables[name] = {
            "epoch": table.epoch,
            "channels": table.channels,
            "slots": table.slots.tolist(),
            "pins": [_plain_pin(pin) for pin in table.pins],
        }
        if table.assigned:
            keys = (key.hex() for key in table.assigned.keys.to_pylist())
            slots = dict(zip(keys, table.assigned.slots.tolist(), strict=True))
            tables[name]["assigned"] = slots
    return tables


def _plain_pin(pin: Any) -> list[Any]:
    plain = [pin.key.hex(), pin.hash, pin.check, pin.slot]
    return [*plain, [*pin.shares]] if pin.shares else plain
