"""How a checkpoint calls the encodings of state: each operator's manifest entry names its own.

A name says how records are read, so it never changes; another encoding gets another name.
"""

from __future__ import annotations

__all__ = ["ARROW_FIELDS", "COLUMNS", "RECORDS", "VARIABLES"]

RECORDS = "msgpack-1"
"""The typed fields of an Operator: `records/codec.py`."""

COLUMNS = "columns-1"
"""The columns of an aggregation: `aggregates/columns.py`."""

VARIABLES = "variables-1"
"""The state variables of a processor: `variables/open_key.py`."""

ARROW_FIELDS = "arrow-fields-1"
"""The Arrow fields of a ColumnOperator: `columnar/records.py`."""
