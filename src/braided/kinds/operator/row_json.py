"""A Row as JSON for people and for `from_json`: every value that a column can have, by name."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

from pyspark.sql import Row

__all__ = ["row_json"]


def row_json(row: Row) -> str:
    """Columns by name; times in ISO, bytes in base64, and as text what JSON has no word for."""
    return json.dumps(_plain(row), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Row) and hasattr(value, "__fields__"):
        return {name: _plain(v) for name, v in zip(value.__fields__, value, strict=True)}
    if isinstance(value, dict):
        return {k if isinstance(k, str) else _as_key(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _as_key(value: Any) -> str:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain)
