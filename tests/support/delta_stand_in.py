"""A data source in Python, in a module that workers can import, that writes rows into Delta tables.

It stands in for Delta Lake's own where that is not at hand, and has its rule: a write whose
application and version the table has is skipped, and so are lower versions.
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from support.sqlite_source import Sqlite, Taken, Writer

__all__ = ["DeltaTables"]

_COLUMNS = pa.schema(
    [("k", pa.string()), ("c", pa.int32()), ("v", pa.int64()), ("seq", pa.int64())]
)


class TableWriter(Writer):
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        path = self._options["path"]
        application, version = (self._options[name] for name in ("txnappid", "txnversion"))
        if DeltaTable.is_deltatable(path):
            written = DeltaTable(path).transaction_version(application)
            if written is not None and written >= int(version):
                return
        rows = [row for message in messages if isinstance(message, Taken) for row in message.rows]
        columns = [dict(zip(_COLUMNS.names, row, strict=True)) for row in rows]
        noted = CommitProperties(app_transactions=[Transaction(application, int(version))])
        table = pa.Table.from_pylist(columns, _COLUMNS)
        write_deltalake(path, table, mode="append", commit_properties=noted)


class DeltaTables(Sqlite):
    @classmethod
    def name(cls) -> str:
        return "delta"

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        assert not overwrite
        return TableWriter(dict(self.options))
