"""A benchmark's result as JSON for programs and as tables for people."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["as_json", "as_text"]


def as_json(result: Mapping[str, Any]) -> str:
    """One line that any JSON reader takes: NaN and infinity, which it would refuse, are null."""
    return json.dumps(_plain(result), allow_nan=False)


def as_text(result: Mapping[str, Any]) -> str:
    """Single values one per line, then a table for each list of records, under its name."""
    result = _plain(result)
    singles: list[tuple[str, Any]] = []
    tables: list[tuple[str, list[Mapping[str, Any]]]] = []
    for name, value in _flat(result):
        if _is_records(value):
            tables.append((name, [dict(_flat(record)) for record in value]))
        else:
            singles.append((name, value))
    parts = []
    if singles:
        parts.append(_aligned([(name, _shown(value)) for name, value in singles]))
    parts += [f"{name}\n{_table(records)}" for name, records in tables]
    return "\n\n".join(parts)


def _plain(value: Any) -> Any:
    """The value in JSON's own types."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # numpy's arrays and scalars
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, inner


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _table(records: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for record in records for name in record))
    rows = [[_shown(record.get(name, "")) for name in columns] for record in records]
    return _aligned([columns, *rows])


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join("  " + line for line in lines)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return "-" if value is None else str(value)
